// RMSNorm on the GPU, with and without a preceding add. See rms_norm.cpp for which kernel serves which shape.
//
//   r = rsqrt(mean(x^2) + eps)    y = x r w    w is weight, or 1 + weight
//
// All arithmetic is in float32. A row is read once and stays in registers between the sum and the result. Rows that are
// too wide for that use the `any` kernels, which take any row and read it twice.
#include "../gpu/cluster.cuh"
#include "../gpu/columns.cuh"
#include "entries.h"
#include "rms_norm_row.cuh"

namespace precast {
namespace rms_norm {

// One row per block, or one row per warp for short rows. Each thread has V vectors, blockDim.x apart.
template <class T, int V, bool kAdd>
DEVICE void forward_row(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // only if blockDim.y > 1, and then there is no barrier
  const u32 first = threadIdx.x, step = blockDim.x;

  const char* x = a.x + row * a.x_stride;
  const char* residual = kAdd ? a.residual + row * a.residual_stride : nullptr;
  Vector v[V], w[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < a.vectors) v[j] = load(x + (first + j * step) * 16);
  }
  if constexpr (kAdd) {
    Vector other[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (first + j * step < a.vectors) other[j] = load(residual + (first + j * step) * 16);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (first + j * step < a.vectors) w[j] = load_constant(a.weight + (first + j * step) * 16);
    }
    if (first == 0 && a.prefetch != 0 && row + a.prefetch < a.rows) {
      prefetch(x + a.prefetch * a.x_stride, a.vectors * 16);
      prefetch(residual + a.prefetch * a.residual_stride, a.vectors * 16);
    }
    char* sum = a.sum + row * a.sum_stride;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (first + j * step < a.vectors) {
        v[j] = combine<T>(v[j], other[j], [](int, float p, float q) { return p + q; });
        store(sum + (first + j * step) * 16, v[j]);
      }
    }
  } else {
    if (first == 0 && a.prefetch != 0 && row + a.prefetch < a.rows) {
      prefetch(x + a.prefetch * a.x_stride, a.vectors * 16);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (first + j * step < a.vectors) w[j] = load_constant(a.weight + (first + j * step) * 16);
    }
  }

  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < a.vectors) squares = sum_of_squares<T>(v[j], squares);
  }
  float scale = rsqrtf(row_sum(squares, shared) * a.inverse_hidden + a.eps);

  if (a.casting == kLlama) {  // rounds the normalised row to its dtype; the later multiplication by one is exact
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (first + j * step < a.vectors) v[j] = combine<T>(v[j], v[j], [&](int, float p, float) { return p * scale; });
    }
    scale = 1.0f;
  }
  const float offset = weight_offset(a.casting);
  char* y = a.y + row * a.y_stride;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < a.vectors) {
      store(y + (first + j * step) * 16,
            combine<T>(v[j], w[j], [&](int, float p, float q) { return p * scale * (q + offset); }));
    }
  }
}

// The same for rows that do not begin at multiples of 16 bytes, with or without the add. `y` must not overlap `x`, nor
// `sum` overlap `residual`: reading a row may also read part of the next.
template <class T, int V>
DEVICE void forward_shifted(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const u32 first = threadIdx.x, step = blockDim.x, bytes = static_cast<u32>(a.hidden) * T::kBytes;
  const i64 last = a.rows - 1;
  char* y = a.y + row * a.y_stride;
  const Shifted<T> at(y, bytes);

  Vector v[V];
  const auto load_rows = [&](Vector(&to)[V], const char* from, i64 stride) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const u32 k = first + j * step;
      if (k < at.count) to[j] = at.load_from(from + row * stride, k, from, from + last * stride + bytes);
    }
  };
  load_rows(v, a.x, a.x_stride);
  if (a.residual != nullptr) {
    Vector other[V];
    load_rows(other, a.residual, a.residual_stride);
    char* sum = a.sum + row * a.sum_stride;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const u32 k = first + j * step;
      if (k >= at.count) continue;
      v[j] = combine<T>(v[j], other[j], [](int, float p, float q) { return p + q; });
      at.store_to(sum, k, v[j]);
    }
  }
  const ShiftedColumns weight = ShiftedColumns::of<T>(a.weight, bytes);
  Vector w[V];
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < at.count) w[j] = weight.at(first + j * step, at.lead);
  }
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    if (k < at.count) squares = sum_of_squares<T>(at.cut(k, v[j], bytes), squares);
  }
  const float scale = rsqrtf(row_sum(squares, shared) * a.inverse_hidden + a.eps);

  const bool llama = a.casting == kLlama;
  const float offset = weight_offset(a.casting);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    if (k >= at.count) continue;
    at.store_to(y, k, combine<T>(v[j], w[j], [&](int, float p, float q) {
                  return (llama ? T::round(p * scale) : p * scale) * (q + offset);
                }));
  }
}

// Any row, with or without the add. It is read once for the sum and again for the result. Elements that can be moved by
// 16 bytes come first (a.vectors, which may be 0), then the rest one at a time.
template <class T>
DEVICE void forward_any(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const i64 first = threadIdx.x, step = blockDim.x, vectors = a.vectors, rest = vectors * T::kPerVector + first;

  const bool add = a.residual != nullptr;
  const char* x = a.x + row * a.x_stride;
  const char* residual = a.residual + row * a.residual_stride;
  char* sum = a.sum + row * a.sum_stride;
  float squares = 0.0f;
#pragma unroll 1
  for (i64 i = first; i < vectors; i += step) {
    Vector v = load(x + i * 16);
    if (add) {
      v = combine<T>(v, load(residual + i * 16), [](int, float p, float q) { return p + q; });
      store(sum + i * 16, v);
    }
    squares = sum_of_squares<T>(v, squares);
  }
#pragma unroll 2
  for (i64 i = rest; i < a.hidden; i += step) {
    float v = T::load(x + i * T::kBytes);
    if (add) {
      v = T::round(v + T::load(residual + i * T::kBytes));
      T::store(sum + i * T::kBytes, v);
    }
    squares = fmaf(v, v, squares);
  }
  if (add) x = sum;  // each thread reads what it wrote itself
  const float scale = rsqrtf(row_sum(squares, shared) * a.inverse_hidden + a.eps);

  const bool llama = a.casting == kLlama;
  const float offset = weight_offset(a.casting);
  const auto result = [&](float p, float q) { return (llama ? T::round(p * scale) : p * scale) * (q + offset); };
  char* y = a.y + row * a.y_stride;
#pragma unroll 1
  for (i64 i = first; i < vectors; i += step) {
    Vector v = load(x + i * 16);
    Columns<T, true> weight;
    weight.load(a.weight, i, a.wide);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float p[T::kPerWord], q[T::kPerWord];
      T::unpack(v.word[k], p);
      weight.unpack(k, q);
#pragma unroll
      for (int e = 0; e < T::kPerWord; ++e) p[e] = result(p[e], q[e]);
      v.word[k] = T::pack(p);
    }
    store(y + i * 16, v);
  }
#pragma unroll 2
  for (i64 i = rest; i < a.hidden; i += step) {
    T::store(y + i * T::kBytes, result(T::load(x + i * T::kBytes), column<T>(a.weight, i, a.wide)));
  }
}

// A row in the registers of a cluster of blocks, with or without the add, up to V vectors per thread.
template <class T, int V>
DEVICE void forward_wide(const ForwardArgs& a) {
#if PRECAST_HAS_CLUSTERS
  cluster_begins();
  next_launch_may_start();
  launch_before_has_ended();
  const ClusterWalk<V> walk(a.vectors);
  const bool add = a.residual != nullptr, wide = T::kBytes == 2 && a.wide != 0;
  const auto fetch = [&](u32 row) {
    walk.fetch(0, a.x + row * a.x_stride);
    if (add) walk.fetch(2, a.residual + row * a.residual_stride);
  };
  if (!wide) walk.fetch(1, a.weight);  // stays in shared memory; a float32 weight of narrower rows is read again
  fetch(walk.row);
  row_ends();
  cluster_has_begun();

  const bool llama = a.casting == kLlama;
  const float offset = weight_offset(a.casting);
  Rounds<> rounds;
  for (u32 row = walk.row; row < a.rows; row += walk.clusters) {
    Vector v[V];
    arrived<0>();
    walk.take(0, v);
    if (add) {
      char* sum = a.sum + row * a.sum_stride;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!walk.has(j)) continue;
        v[j] = combine<T>(v[j], load_shared(walk.place(2, j)), [](int, float p, float q) { return p + q; });
        store(sum + walk.offset(j), v[j]);
      }
    }
    float sums[1] = {0.0f};
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) sums[0] = sum_of_squares<T>(v[j], sums[0]);
    }
    if (row + walk.clusters < a.rows) fetch(row + walk.clusters);
    row_ends();
    rounds.sums(sums);
    const float scale = rsqrtf(sums[0] * a.inverse_hidden + a.eps);

    char* y = a.y + row * a.y_stride;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!walk.has(j)) continue;
      Columns<T, true> weight;
      Vector w;
      if (wide) {
        weight.load(a.weight, walk.first + j * walk.step, true);
      } else {
        w = load_shared(walk.place(1, j));
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float p[T::kPerWord], q[T::kPerWord];
        T::unpack(v[j].word[k], p);
        if (wide) {
          weight.unpack(k, q);
        } else {
          T::unpack(w.word[k], q);
        }
#pragma unroll
        for (int e = 0; e < T::kPerWord; ++e) {
          p[e] = (llama ? T::round(p[e] * scale) : p[e] * scale) * (q[e] + offset);
        }
        v[j].word[k] = T::pack(p);
      }
      store(y + walk.offset(j), v[j]);
    }
  }
#endif
}

RMS_NORM_KERNELS(KERNEL)

}  // namespace rms_norm
}  // namespace precast
