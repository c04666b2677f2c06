// The movement of rows to experts and back. A position that a tensor does not have is skipped.
#include "entries.h"
#include "moe.cuh"

namespace precast {
namespace moe {

constexpr int kCopied = 4, kColumns = 2;  // units that a thread works on at a time: those that it copies, and others

// The token of this row of threads.
DEVICE u32 this_token() { return blockIdx.x * blockDim.y + threadIdx.y; }

// Blocks along y share a row: the first unit of this thread in it, and the distance to the next.
DEVICE u32 first_unit() { return blockIdx.y * blockDim.x + threadIdx.x; }
DEVICE u32 unit_step() { return gridDim.y * blockDim.x; }

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

// How many pairs come before `pair` in the order of experts, if it has this bucket. All lanes of a warp count.
DEVICE int pairs_before(const int* buckets, int pairs, int pair, int bucket) {
  float before = 0.0f;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x % 32); i < pairs; i += 32) {
    before += buckets[i] < bucket || (buckets[i] == bucket && i < pair) ? 1.0f : 0.0f;
  }
  return static_cast<int>(warp_sum(before));
}

// Every block reads all ids and finds the slots of its token. The row is on its way meanwhile. The blocks share the
// ends of the experts.
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
  if (step >= a.units) {  // a unit for a thread
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

// ---- back: the weighted sum of a token's rows, in the order of its places ----

template <class T>
DEVICE void combine_row(const CombineArgs& a) {
  const u32 token = this_token();
  if (token >= a.tokens) return;
  const int* positions = a.positions + static_cast<i64>(token) * a.k;
  const float* weights = a.weights == nullptr ? nullptr : a.weights + static_cast<i64>(token) * a.k;
  const u32 step = unit_step();
  char* result = a.result + token * a.row_bytes;
#pragma unroll 1
  for (u32 first = first_unit(); first < a.units; first += kColumns * step) {
    float sum[kColumns][T::kPerVector] = {};
#pragma unroll 1
    for (int j = 0; j < a.k; ++j) {
      const int position = positions[j];
      if (position < 0 || position >= a.slots) continue;
      const float weight = weights == nullptr ? 1.0f : weights[j];
      const char* row = a.rows + position * a.stride;
      Vector x[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const u32 at = first + static_cast<u32>(c) * step;
        if (at < a.units) x[c] = load_constant(row + static_cast<i64>(at) * 16);
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        for_elements<T>(x[c], [&](int e, float v) { sum[c][e] = fmaf(v, weight, sum[c][e]); });
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const u32 at = first + static_cast<u32>(c) * step;
      const Vector none = {};
      if (at < a.units) {
        store(result + static_cast<i64>(at) * 16,
              combine<T>(none, none, [&](int e, float, float) { return sum[c][e]; }));
      }
    }
  }
}

// The same for few tokens, whose rows are shared by blocks of which each thread has one vector: all places are loaded
// before the first is used, and so are the rows at eight of them.
template <class T>
DEVICE void combine_few(const CombineArgs& a) {
  constexpr int kAhead = 8;
  const u32 token = blockIdx.x, at = first_unit();
  if (at >= a.units) return;
  const int* positions = a.positions + static_cast<i64>(token) * a.k;
  const float* weights = a.weights == nullptr ? nullptr : a.weights + static_cast<i64>(token) * a.k;
  float sum[T::kPerVector] = {};
#pragma unroll 1
  for (int start = 0; start < a.k; start += kAhead) {
    int position[kAhead];
    float weight[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      position[j] = start + j < a.k ? positions[start + j] : -1;
      weight[j] = weights != nullptr && start + j < a.k ? weights[start + j] : 1.0f;
      if (position[j] >= a.slots) position[j] = -1;
    }
    Vector x[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (position[j] >= 0) x[j] = load_constant(a.rows + position[j] * a.stride + static_cast<i64>(at) * 16);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (position[j] < 0) continue;
      for_elements<T>(x[j], [&](int e, float v) { sum[e] = fmaf(v, weight[j], sum[e]); });
    }
  }
  const Vector none = {};
  store(a.result + token * a.row_bytes + static_cast<i64>(at) * 16,
        combine<T>(none, none, [&](int e, float, float) { return sum[e]; }));
}

// Elements of a dtype that only the launch knows.
DEVICE float get(const char* p, int dtype) {
  return dtype == 0 ? Float32::load(p) : dtype == 1 ? Float16::load(p) : BFloat16::load(p);
}

DEVICE void put(char* p, float v, int dtype) {
  if (dtype == 0) return Float32::store(p, v);
  if (dtype == 1) return Float16::store(p, v);
  BFloat16::store(p, v);
}

DEVICE i64 bytes_of(int dtype) { return dtype == 0 ? 4 : 2; }

DEVICE void combine_any(const CombineArgs& a) {
  const u32 token = this_token();
  if (token >= a.tokens) return;
  const int* positions = a.positions + static_cast<i64>(token) * a.k;
  const float* weights = a.weights == nullptr ? nullptr : a.weights + static_cast<i64>(token) * a.k;
#pragma unroll 1
  for (u32 at = threadIdx.x; at < a.units; at += blockDim.x) {
    const i64 offset = at * bytes_of(a.dtype);
    float sum = 0.0f;
#pragma unroll 1
    for (int j = 0; j < a.k; ++j) {
      const int position = positions[j];
      if (position < 0 || position >= a.slots) continue;
      sum = fmaf(get(a.rows + position * a.stride + offset, a.dtype), weights == nullptr ? 1.0f : weights[j], sum);
    }
    put(a.result + token * a.row_bytes + offset, sum, a.dtype);
  }
}

// ---- slots with several pairs ----

// Pairs that do not own their slot are rare: only callers with positions of their own have them. Each adds up all pairs
// of its slot, in their order, so that all of a slot write the same numbers.
DEVICE void repeat(const RepeatArgs& a) {
  __shared__ int found[kRepeatThreads];
  const i64 pair = static_cast<i64>(blockIdx.x) * kRepeatThreads + threadIdx.x;
  int slot = -1;
  if (pair < static_cast<i64>(a.tokens) * a.k) {
    const int position = a.positions[pair];
    if (position >= 0 && position < a.slots && a.owners[position] != pair) slot = position;
  }
  found[threadIdx.x] = slot;
  __syncthreads();
#pragma unroll 1
  for (int other = 0; other < kRepeatThreads; ++other) {
    slot = found[other];
    if (slot < 0) continue;
#pragma unroll 1
    for (u32 at = threadIdx.x; at < a.width; at += kRepeatThreads) {
      const i64 offset = at * bytes_of(a.dtype);
      const int* position = a.positions;
      float sum = 0.0f;
#pragma unroll 1
      for (u32 token = 0; token < a.tokens; ++token) {
#pragma unroll 1
        for (int j = 0; j < a.k; ++j, ++position) {
          if (*position != slot) continue;
          const float weight = a.weights == nullptr ? 1.0f : a.weights[position - a.positions];
          sum = fmaf(get(a.rows + token * a.stride + offset, a.dtype), weight, sum);
        }
      }
      put(a.result + slot * a.row_bytes + offset, sum, a.dtype);
    }
  }
}

// ---- gradients of the way back: a block has a token ----

template <class T>
DEVICE float product(const Vector& x, const Vector& y) {
  float sum = 0.0f, other[T::kPerVector];
  for_elements<T>(y, [&](int e, float v) { other[e] = v; });
  for_elements<T>(x, [&](int e, float v) { sum = fmaf(v, other[e], sum); });
  return sum;
}

// Calls body(row, grad_row, inside, weight) for each place of this block's token; the row of a place that is left out
// becomes zero. `body` returns what this thread has of the product. The warps meet once for several places.
template <class Body>
DEVICE void for_places(const CombineBackwardArgs& a, const Body& body) {
  constexpr int kTogether = 8;
  __shared__ float parts[kTogether][kRowThreads / 32];
  const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll 1
  for (int start = 0; start < a.k; start += kTogether) {
    const i64 first = static_cast<i64>(blockIdx.x) * a.k + start;
    const int count = a.k - start < kTogether ? a.k - start : kTogether;
    if (start > 0) __syncthreads();
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
      const int position = a.positions[first + j];
      const i64 slot = position >= 0 ? position : ~position;
      const bool inside = position >= 0 && slot < a.slots;
      float dot = 0.0f;
      if (slot < a.slots && (inside || a.whole != 0)) {
        const float weight = inside ? a.weights[first + j] : 0.0f;
        dot = body(a.rows + slot * a.stride, a.grad_rows + slot * a.row_bytes, inside, weight);
      }
      dot = warp_sum(dot);
      if (threadIdx.x % 32 == 0) parts[j][warp] = dot;
    }
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < count) {
      float sum = 0.0f;
#pragma unroll 1
      for (u32 w = 0; w < warps; ++w) sum += parts[threadIdx.x][w];
      a.grad_weights[first + threadIdx.x] = sum;
    }
  }
}

// The gradient is loaded once for all places if the block's registers hold a row of it.
template <class T>
DEVICE void combine_backward(const CombineBackwardArgs& a) {
  const char* grad = a.grad + blockIdx.x * a.grad_stride;
  const u32 step = kColumns * blockDim.x;
  Vector slope[kColumns] = {};
  const auto load_slope = [&](u32 first) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const u32 at = first + static_cast<u32>(c) * blockDim.x;
      if (at < a.units) slope[c] = load_constant(grad + static_cast<i64>(at) * 16);
    }
  };
  if (a.units <= step) load_slope(threadIdx.x);
  for_places(a, [&](const char* row, char* to, bool inside, float weight) {
    float dot = 0.0f;
#pragma unroll 1
    for (u32 first = threadIdx.x; first < a.units; first += step) {
      if (a.units > step) load_slope(first);
      Vector x[kColumns] = {};
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const u32 at = first + static_cast<u32>(c) * blockDim.x;
        if (inside && at < a.units) x[c] = load_constant(row + static_cast<i64>(at) * 16);
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const u32 at = first + static_cast<u32>(c) * blockDim.x;
        if (at >= a.units) continue;
        const auto scaled = [&](int, float v, float) { return inside ? v * weight : 0.0f; };
        store(to + static_cast<i64>(at) * 16, combine<T>(slope[c], slope[c], scaled));
        if (inside) dot += product<T>(slope[c], x[c]);
      }
    }
    return dot;
  });
}

DEVICE void combine_backward_any(const CombineBackwardArgs& a) {
  const char* grad = a.grad + blockIdx.x * a.grad_stride;
  for_places(a, [&](const char* row, char* to, bool inside, float weight) {
    float dot = 0.0f;
#pragma unroll 1
    for (u32 at = threadIdx.x; at < a.units; at += blockDim.x) {
      const i64 offset = at * bytes_of(a.dtype);
      const float slope = inside ? get(grad + offset, a.dtype) : 0.0f;
      if (inside) dot = fmaf(slope, get(row + offset, a.dtype), dot);
      put(to + offset, slope * weight, a.dtype);
    }
    return dot;
  });
}

MOE_KERNELS(KERNEL)

}  // namespace moe
}  // namespace precast
