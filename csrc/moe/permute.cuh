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
  next_launch_may_start();
  if (sizeof(Unit) == 16 && first_unit() == 0) prefetch(row, static_cast<u32>(a.row_bytes));
  launch_before_has_ended();
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

// ---- few pairs: their places and their rows in one launch ----

constexpr int kIdsAtOnce = 8, kMostPlaces = 1024, kFewest = 128;

struct alignas(16) FewPlaces {
  int before[kMostExperts + 1], others[kMostExperts + 1];  // pairs of each expert, and of none
  int places[kMostPlaces];
  int sums[kCountingThreads / 32];
};

// Counts all pairs by expert, those before the pair `first` apart. Sums of integers, so their order does not matter.
DEVICE void count_few(const PermuteFewArgs& a, int first, FewPlaces& of) {
  const int me = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int i = me; i <= a.experts; i += threads) of.before[i] = of.others[i] = 0;
#pragma unroll 1
  for (int start = 0; start < a.pairs; start += threads * kIdsAtOnce) {
    u32 bucket[kIdsAtOnce];  // loaded together, so that the memory's latency counts once
#pragma unroll
    for (int i = 0; i < kIdsAtOnce; ++i) {
      const int pair = start + i * threads + me;
      if (pair < a.pairs) bucket[i] = bucket_at(a.ids, a.id_bytes, a.experts, static_cast<u32>(pair));
    }
    if (start == 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < kIdsAtOnce; ++i) {
      const int pair = start + i * threads + me;
      if (pair < a.pairs) atomicAdd((pair < first ? of.before : of.others) + bucket[i], 1);
    }
  }
  __syncthreads();
}

// Turns the counts of pairs before into the slots of each expert's next pairs. The first block writes the ends.
DEVICE void start_few(const PermuteFewArgs& a, bool writes, FewPlaces& of) {
  const int me = static_cast<int>(threadIdx.x), lane = me % 32, warp = me / 32;
  const int each = a.experts / static_cast<int>(blockDim.x) + 1, from = me * each;
  const auto count = [&](int i) { return from + i <= a.experts ? of.before[from + i] + of.others[from + i] : 0; };
  int sum = 0;
#pragma unroll 1
  for (int i = 0; i < each; ++i) sum += count(i);
  int through = sum;  // the sum up to this lane
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, distance);
    if (lane >= distance) through += other;
  }
  if (lane == 31) of.sums[warp] = through;
  __syncthreads();
  int start = through - sum;
#pragma unroll 4
  for (int i = 0; i < warp; ++i) start += of.sums[i];
#pragma unroll 1
  for (int i = 0; i < each; ++i) {
    const int next = start + count(i);
    if (from + i <= a.experts) of.before[from + i] += start;
    if (writes && from + i < a.experts) a.ends[from + i] = next;
    start = next;
  }
  __syncthreads();
}

// Finds the places of `count` pairs, which come after those before. A warp calls this.
DEVICE void place_few(const PermuteFewArgs& a, int first, int count, FewPlaces& of) {
  const int lane = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = lane; i - lane < count; i += 32) {
    u32 bucket = 0xffffffffu;
    if (i < count) bucket = bucket_at(a.ids, a.id_bytes, a.experts, static_cast<u32>(first + i));
    const u32 peers = __match_any_sync(kAllLanes, bucket);
    const int rank = __popc(peers & ((1u << lane) - 1)), slot = i < count ? of.before[bucket] + rank : 0;
    __syncwarp();
    if (i < count && rank == 0) of.before[bucket] = slot + __popc(peers);
    __syncwarp();
    if (i < count) of.places[i] = bucket < static_cast<u32>(a.experts) ? slot : ~slot;
  }
}

// The fewest pairs are compared instead. A pair's key orders it by expert, then by its number, so the number of keys
// below it is its slot. All lanes of a warp call this.
DEVICE int keys_below(const int* keys, int key) {
  const int4 four = *reinterpret_cast<const int4*>(keys + 4 * (threadIdx.x % 32));
  return warp_count((four.x < key ? 1 : 0) + (four.y < key ? 1 : 0) + (four.z < key ? 1 : 0) + (four.w < key ? 1 : 0));
}
DEVICE void compare_few(const PermuteFewArgs& a, int first, int own, FewPlaces& of) {
  const int me = static_cast<int>(threadIdx.x);
  const u32 bucket = me < a.pairs ? bucket_at(a.ids, a.id_bytes, a.experts, static_cast<u32>(me)) : 0;
  of.before[me] = me < a.pairs ? static_cast<int>(bucket) * kFewest + me : 0x7fffffff;
  __syncthreads();
#pragma unroll 2
  for (int i = me / 32; i < own; i += kFewest / 32) {
    const int key = of.before[first + i], slot = keys_below(of.before, key);
    if (me % 32 == 0) of.places[i] = key < a.experts * kFewest ? slot : ~slot;
  }
}

// Every block counts all pairs, while the first loads of its tokens' rows are in flight. There are several tokens in a
// block, or one with up to any number of places.
template <class Unit>
DEVICE void permute_few_rows(const PermuteFewArgs& a, FewPlaces& of) {
  const u32 step = unit_step();
  const int me = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * a.together * a.k;
  const int own = a.pairs - first < a.together * a.k ? a.pairs - first : a.together * a.k;
  Unit unit[kCopied];
  const auto load_units = [&](int pair, u32 from) {
    const char* const row = a.rows + pair / a.k * a.stride;
#pragma unroll
    for (int c = 0; c < kCopied; ++c) {
      const u32 at = from + static_cast<u32>(c) * step;
      if (at < a.units) unit[c] = read_unit<Unit>(row + static_cast<i64>(at) * sizeof(Unit));
    }
  };
  const auto write = [&](int i, u32 at, const Unit& from) {
    const int place = of.places[i], slot = place >= 0 ? place : ~place;
    char* const to = a.result + slot * a.row_bytes;
    if (at < a.units) write_unit(to + static_cast<i64>(at) * sizeof(Unit), place >= 0 ? from : Unit{});
  };
  if (own > 0) load_units(first, first_unit());
  const bool fewest = a.pairs <= kFewest;
  if (fewest) {
    compare_few(a, first, own, of);
  } else {
    count_few(a, first, of);
    start_few(a, blockIdx.x + blockIdx.y == 0, of);
  }
#pragma unroll 1
  for (int done = first; done < first + own; done += kMostPlaces) {
    const int left = first + own - done, count = left < kMostPlaces ? left : kMostPlaces;
    if (done > first) __syncthreads();
    if (me < 32 && !fewest) place_few(a, done, count, of);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < count; i += a.k) {
      const int end = i + a.k < count ? i + a.k : count;
      if (done + i > first) load_units(done + i, first_unit());
      if (step >= a.units) {  // at most one unit per thread
#pragma unroll 4
        for (int j = i; j < end; ++j) write(j, first_unit(), unit[0]);
        continue;
      }
#pragma unroll 1
      for (u32 from = first_unit(); from < a.units; from += kCopied * step, load_units(done + i, from)) {
#pragma unroll 2
        for (int j = i; j < end; ++j) {
#pragma unroll
          for (int c = 0; c < kCopied; ++c) write(j, from + static_cast<u32>(c) * step, unit[c]);
        }
      }
    }
#pragma unroll 1
    for (int i = me; i < count && blockIdx.y == 0; i += static_cast<int>(blockDim.x)) {
      a.positions[done + i] = of.places[i];
    }
  }
#pragma unroll 1
  for (int expert = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) * (kFewest / 32) + me / 32;
       fewest && expert < a.experts; expert += static_cast<int>(gridDim.x * gridDim.y) * (kFewest / 32)) {
    const int end = keys_below(of.before, (expert + 1) * kFewest);
    if (me % 32 == 0) a.ends[expert] = end;
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
