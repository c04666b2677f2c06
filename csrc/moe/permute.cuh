// Moves rows to their experts.
#pragma once

#include "moe.cuh"

namespace precast {
namespace moe {

constexpr int kCopied = 4;  // units that a thread copies at a time

// ---- to the experts: bytes without a dtype ----

template <class Unit>
DEVICE Unit read_unit(const char* p) {
  return *reinterpret_cast<const Unit*>(p);
}
template <>
DEVICE Vector read_unit<Vector>(const char* p) {
  return load_constant(p);
}

template <class Unit>
DEVICE void write_unit(char* p, Unit unit) {
  *reinterpret_cast<Unit*>(p) = unit;
}
template <>
DEVICE void write_unit<Vector>(char* p, Vector unit) {
  store(p, unit);
}

template <class Unit>
DEVICE void permute_row(const PermuteArgs& a) {
  const u32 token = this_token();
  if (token >= a.tokens) return;
  const char* row = a.rows + token * a.stride;
  if (a.prefetch != 0 && threadIdx.x == 0 && token + a.prefetch < a.tokens) {
    prefetch(row + a.prefetch * a.stride, static_cast<u32>(a.row_bytes));
  }
  const u32 step = unit_step();
  const int* positions = a.positions + static_cast<i64>(token) * a.k;
#pragma unroll 1
  for (u32 first = first_unit(); first < a.units; first += kCopied * step) {
    Unit unit[kCopied];
#pragma unroll
    for (int c = 0; c < kCopied; ++c) {
      const u32 at = first + static_cast<u32>(c) * step;
      if (at < a.units) unit[c] = read_unit<Unit>(row + static_cast<i64>(at) * sizeof(Unit));
    }
#pragma unroll 1
    for (int j = 0; j < a.k; ++j) {
      const int position = positions[j];
      const i64 slot = position >= 0 ? position : ~position;
      if (slot >= a.slots || (position < 0 && a.whole == 0)) continue;
      char* to = a.result + slot * a.row_bytes;
#pragma unroll
      for (int c = 0; c < kCopied; ++c) {
        const u32 at = first + static_cast<u32>(c) * step;
        if (at < a.units) write_unit(to + static_cast<i64>(at) * sizeof(Unit), position >= 0 ? unit[c] : Unit{});
      }
    }
  }
}

DEVICE void permute(const PermuteArgs& a) {
  if (a.unit_bytes == 16) return permute_row<Vector>(a);
  if (a.unit_bytes == 4) return permute_row<u32>(a);
  permute_row<u16>(a);
}

// ---- few tokens: their places and their rows in one launch ----

// The rank of `pair`, which is in `bucket`, in the order of experts. The lanes of a warp share the count.
DEVICE int pairs_before(const int* buckets, int pairs, int pair, int bucket) {
  float before = 0.0f;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x % 32); i < pairs; i += 32) {
    before += buckets[i] < bucket || (buckets[i] == bucket && i < pair) ? 1.0f : 0.0f;
  }
  return static_cast<int>(warp_sum(before));
}

// Every block reads all ids and computes the slots of its token, while the loads of the row are in flight. The blocks
// divide the ends of the experts among them.
template <class Unit>
DEVICE void permute_few_rows(const PermuteFewArgs& a) {
  __shared__ int buckets[kFewPairs], places[kFewPairs];
  const u32 token = blockIdx.x, step = unit_step();
  const int warps = static_cast<int>(blockDim.x / 32), warp = static_cast<int>(threadIdx.x / 32);
  const char* row = a.rows + token * a.stride;
  Unit unit[kCopied];
  const auto load_units = [&](u32 first) {
#pragma unroll
    for (int c = 0; c < kCopied; ++c) {
      const u32 at = first + static_cast<u32>(c) * step;
      if (at < a.units) unit[c] = read_unit<Unit>(row + static_cast<i64>(at) * sizeof(Unit));
    }
  };
  load_units(first_unit());
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < a.pairs; i += static_cast<int>(blockDim.x)) {
    buckets[i] = static_cast<int>(bucket_at(a.ids, a.id_bytes, a.experts, static_cast<u32>(i)));
  }
  __syncthreads();
#pragma unroll 2
  for (int j = warp; j < a.k; j += warps) {
    const int pair = static_cast<int>(token) * a.k + j, bucket = buckets[pair];
    const int slot = pairs_before(buckets, a.pairs, pair, bucket);
    if (threadIdx.x % 32 == 0) places[j] = bucket < a.experts ? slot : ~slot;
  }
  __syncthreads();
  const auto place_of = [&](int j) { return a.result + (places[j] >= 0 ? places[j] : ~places[j]) * a.row_bytes; };
  const auto write = [&](char* to, u32 at, bool placed, const Unit& from) {
    if (at < a.units) write_unit(to + static_cast<i64>(at) * sizeof(Unit), placed ? from : Unit{});
  };
  if (step >= a.units) {  // at most one unit per thread
#pragma unroll 4
    for (int j = 0; j < a.k; ++j) write(place_of(j), first_unit(), places[j] >= 0, unit[0]);
  } else {
#pragma unroll 1
    for (u32 first = first_unit(); first < a.units; first += kCopied * step, load_units(first)) {
#pragma unroll 2
      for (int j = 0; j < a.k; ++j) {
#pragma unroll
        for (int c = 0; c < kCopied; ++c) {
          write(place_of(j), first + static_cast<u32>(c) * step, places[j] >= 0, unit[c]);
        }
      }
    }
  }
  if (blockIdx.y == 0) {
#pragma unroll 1
    for (int j = static_cast<int>(threadIdx.x); j < a.k; j += static_cast<int>(blockDim.x)) {
      a.positions[static_cast<int>(token) * a.k + j] = places[j];
    }
  }
  const int first = static_cast<int>(blockIdx.y * gridDim.x + token) * warps + warp;
#pragma unroll 1
  for (int expert = first; expert < a.experts; expert += static_cast<int>(gridDim.x * gridDim.y) * warps) {
    const int end = pairs_before(buckets, a.pairs, a.pairs, expert);
    if (threadIdx.x % 32 == 0) a.ends[expert] = end;
  }
}

DEVICE void permute_few(const PermuteFewArgs& a) {
  if (a.unit_bytes == 16) return permute_few_rows<Vector>(a);
  if (a.unit_bytes == 4) return permute_few_rows<u32>(a);
  permute_few_rows<u16>(a);
}

DEVICE void zero(const ZeroArgs& a) {
  const i64 vectors = a.bytes / 16, stride = static_cast<i64>(gridDim.x) * blockDim.x;
  const i64 first = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (i64 i = first; i < vectors; i += stride) store(a.data + i * 16, Vector{});
  if (first < a.bytes % 16) a.data[vectors * 16 + first] = 0;
#pragma unroll 1
  for (i64 pair = first; pair < a.pairs; pair += stride) {
    const int position = a.positions[pair];
    if (position >= 0 && position < a.slots) a.owners[position] = static_cast<int>(pair);
  }
}

}  // namespace moe
}  // namespace precast
