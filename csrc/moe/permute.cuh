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

// A pair's key orders it by expert, then by its number. So the number of keys below it is its slot. `keys` has whole
// rounds of a warp, and the greatest number for what is no pair. All lanes of a warp call this.
constexpr int kRound = 128;

DEVICE int keys_below(const int* keys, int pairs, int key) {
  int below = 0;
#pragma unroll 2
  for (int start = 0; start < pairs; start += kRound) {
    const int4 four = *reinterpret_cast<const int4*>(keys + start + 4 * (threadIdx.x % 32));
    below += (four.x < key ? 1 : 0) + (four.y < key ? 1 : 0) + (four.z < key ? 1 : 0) + (four.w < key ? 1 : 0);
  }
  return warp_count(below);
}

struct alignas(16) FewPlaces {
  int keys[kFewPairs], places[kFewPairs];
};

// Every block reads all ids and computes the slots of its token, while the loads of the row are in flight. The blocks
// divide the ends of the experts among them.
template <class Unit>
DEVICE void permute_few_rows(const PermuteFewArgs& a, FewPlaces& of) {
  const u32 token = blockIdx.x, step = unit_step();
  const int warps = static_cast<int>(blockDim.x / 32), warp = static_cast<int>(threadIdx.x / 32);
  const int none = a.experts * kFewPairs;  // the least key of a pair without an expert
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
  for (int i = static_cast<int>(threadIdx.x); i < (a.pairs + kRound - 1) / kRound * kRound; i += kRound) {
    const u32 pair = static_cast<u32>(i);
    const int bucket = i < a.pairs ? static_cast<int>(bucket_at(a.ids, a.id_bytes, a.experts, pair)) : 0;
    of.keys[i] = i < a.pairs ? bucket * kFewPairs + i : 0x7fffffff;
  }
  __syncthreads();
#pragma unroll 2
  for (int j = warp; j < a.k; j += warps) {
    const int key = of.keys[static_cast<int>(token) * a.k + j], slot = keys_below(of.keys, a.pairs, key);
    if (threadIdx.x % 32 == 0) of.places[j] = key < none ? slot : ~slot;
  }
  __syncthreads();
  const auto write = [&](int j, u32 at, const Unit& from) {
    const int place = of.places[j], slot = place >= 0 ? place : ~place;
    char* const to = a.result + slot * a.row_bytes;
    if (at < a.units) write_unit(to + static_cast<i64>(at) * sizeof(Unit), place >= 0 ? from : Unit{});
  };
  if (step >= a.units) {  // at most one unit per thread
#pragma unroll 4
    for (int j = 0; j < a.k; ++j) write(j, first_unit(), unit[0]);
  } else {
#pragma unroll 1
    for (u32 first = first_unit(); first < a.units; first += kCopied * step, load_units(first)) {
#pragma unroll 2
      for (int j = 0; j < a.k; ++j) {
#pragma unroll
        for (int c = 0; c < kCopied; ++c) write(j, first + static_cast<u32>(c) * step, unit[c]);
      }
    }
  }
  if (blockIdx.y == 0) {
#pragma unroll 1
    for (int j = static_cast<int>(threadIdx.x); j < a.k; j += static_cast<int>(blockDim.x)) {
      a.positions[static_cast<int>(token) * a.k + j] = of.places[j];
    }
  }
  const int first = static_cast<int>(blockIdx.y * gridDim.x + token) * warps + warp;
#pragma unroll 1
  for (int expert = first; expert < a.experts; expert += static_cast<int>(gridDim.x * gridDim.y) * warps) {
    const int end = keys_below(of.keys, a.pairs, (expert + 1) * kFewPairs);
    if (threadIdx.x % 32 == 0) a.ends[expert] = end;
  }
}

DEVICE void permute_few(const PermuteFewArgs& a) {
  __shared__ FewPlaces of;
  begin_launch(a.early);
  if (a.unit_bytes == 16) return permute_few_rows<Vector>(a, of);
  if (a.unit_bytes == 4) return permute_few_rows<u32>(a, of);
  permute_few_rows<u16>(a, of);
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
