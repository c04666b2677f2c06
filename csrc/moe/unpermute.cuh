// Moves rows back to their tokens and sums them (combine), and the gradients.
#pragma once

#include "moe.cuh"

namespace precast {
namespace moe {

constexpr int kColumns = 2;  // units that a thread adds up at a time

// ---- back: the weighted sum of a token's rows, in the order of its places ----

template <class T>
DEVICE void combine_row(const CombineArgs& a) {
  begin_launch(a.early);
  const u32 token = this_token();
  if (token >= a.tokens) return;
  const int* positions = a.positions + static_cast<i64>(token) * a.k;
  const float* weights = a.weights == nullptr ? nullptr : a.weights + static_cast<i64>(token) * a.k;
  if (a.prefetch != 0 && threadIdx.x == 0 && token + a.prefetch < a.tokens) {
    const int ahead = positions[a.prefetch];
    if (ahead >= 0 && ahead < a.slots) prefetch(a.rows + ahead * a.stride, static_cast<u32>(a.row_bytes));
  }
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

// The same for few tokens: several blocks share a row, with one vector per thread. All positions are loaded before the
// first is used, and so are eight rows at a time.
template <class T>
DEVICE void combine_few(const CombineArgs& a) {
  begin_launch(a.early);
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

// Elements whose dtype is an argument of the launch.
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

// Only positions that a caller made itself can name a slot several times, so this is rare. Every pair that does not own
// its slot sums all pairs of the slot in order, so all of them write the same bits.
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

// Calls body(row, grad_row, inside, weight) for each of the k slots of this block's token; if not `inside`, the
// gradient of the row is zero. `body` returns this thread's part of the dot product. The warps synchronise once per
// eight slots.
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

// The gradient is loaded once for all k slots if the block's registers can hold a row of it.
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

}  // namespace moe
}  // namespace precast
