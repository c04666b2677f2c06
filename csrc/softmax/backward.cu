// The gradient of softmax on the GPU, computed from its result. See backward.cpp for which kernel serves which shape.
//
//   grad_x = scale y (grad - sum(grad y))
//
// Where a mask makes the result zero the gradient is zero too, so the mask is not needed. Nothing is read beyond the
// diagonal.
#include "entries.h"
#include "row.cuh"

namespace precast {
namespace softmax {

template <class T>
DEVICE float dot(const Vector& g, const Vector& y, i64 count, float sum) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float p[T::kPerWord], q[T::kPerWord];
    T::unpack(g.word[k], p);
    T::unpack(y.word[k], q);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) {
      if (k * T::kPerWord + e < count) sum = fmaf(p[e], q[e], sum);
    }
  }
  return sum;
}

template <class T, int V>
DEVICE void backward_row(const BackwardArgs& a) {
  alignas(16) __shared__ float shared[32];
  begin_launch(a.early);
  constexpr u32 kPer = T::kPerVector;
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // only if blockDim.y > 1, and then there is no barrier
  const u32 first = threadIdx.x, step = blockDim.x;
  const u32 open = static_cast<u32>(open_columns(a, row)), vectors = (open + kPer - 1) / kPer;

  const char* grad = a.grad + row * a.grad_stride;
  const char* y = a.y + row * a.y_stride;
  Vector g[V], v[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < vectors) g[j] = load(grad + (first + j * step) * 16);
  }
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < vectors) v[j] = load(y + (first + j * step) * 16);
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 at = first + j * step;
    if (at >= vectors) continue;
    if ((at + 1) * kPer <= open) {
      sum = dot<T>(g[j], v[j], kPer, sum);
    } else {
      sum = dot<T>(g[j], v[j], open - at * kPer, sum);
    }
  }
  sum = row_sum(sum, shared);

  char* grad_x = a.grad_x + row * a.grad_x_stride;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 at = first + j * step;
    if (at >= a.vectors) continue;
    Vector result = {{0, 0, 0, 0}};
    if (at < vectors) {
      result = combine<T>(g[j], v[j], [&](int, float p, float q) { return a.scale * (q * (p - sum)); });
      if ((at + 1) * kPer > open) {
        result = combine<T>(result, result, [&](int i, float e, float) { return at * kPer + i < open ? e : 0.0f; });
      }
    }
    store(grad_x + at * 16, result);
  }
}

// The same for rows that do not begin at multiples of 16 bytes.
template <class T, int V>
DEVICE void backward_shifted(const BackwardArgs& a) {
  alignas(16) __shared__ float shared[32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const u32 first = threadIdx.x, step = blockDim.x, bytes = static_cast<u32>(a.columns) * T::kBytes;
  const u32 open = static_cast<u32>(open_columns(a, row)) * T::kBytes;
  char* grad_x = a.grad_x + row * a.grad_x_stride;
  const Shifted<T> at(grad_x, bytes);

  const i64 last = a.rows - 1;
  Vector g[V], v[V];
  const auto load_rows = [&](Vector(&to)[V], const char* from, i64 stride) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const u32 k = first + j * step;
      if (k * 16 < at.lead + open) to[j] = at.load_from(from + row * stride, k, from, from + last * stride + bytes);
    }
  };
  load_rows(g, a.grad, a.grad_stride);
  load_rows(v, a.y, a.y_stride);
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    if (k * 16 >= at.lead + open) continue;
    g[j] = at.cut(k, g[j], open);
    v[j] = at.cut(k, v[j], open);
    sum = dot<T>(g[j], v[j], T::kPerVector, sum);
  }
  sum = row_sum(sum, shared);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    if (k >= at.count) continue;
    Vector result = {{0, 0, 0, 0}};
    if (k * 16 < at.lead + open) {
      result = combine<T>(g[j], v[j], [&](int, float p, float q) { return a.scale * (q * (p - sum)); });
      result = at.cut(k, result, open);  // a NaN sum must not reach columns beyond the diagonal
    }
    at.store_to(grad_x, k, result);
  }
}

// Any row, read twice.
template <class T>
DEVICE void backward_any(const BackwardArgs& a) {
  alignas(16) __shared__ float shared[32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const i64 first = threadIdx.x, step = blockDim.x, open = open_columns(a, row);
  const char* grad = a.grad + row * a.grad_stride;
  const Peeled<T> of(a, grad, open);
  const char* y = a.y + row * a.y_stride;
  float sum = 0.0f;
#pragma unroll 2
  for (i64 i = first; i < of.vectors; i += step) {
    sum = dot<T>(load(grad + of.byte(i)), load(y + of.byte(i)), T::kPerVector, sum);
  }
#pragma unroll 4
  for (i64 i = first; i < of.others; i += step) {
    const i64 at = of.column(i) * T::kBytes;
    sum = fmaf(T::load(grad + at), T::load(y + at), sum);
  }
  sum = row_sum(sum, shared);

  const auto result = [&](int, float p, float q) { return a.scale * (q * (p - sum)); };
  char* grad_x = a.grad_x + row * a.grad_x_stride;
#pragma unroll 1
  for (i64 i = first; i < of.vectors; i += step) {
    store(grad_x + of.byte(i), combine<T>(load(grad + of.byte(i)), load(y + of.byte(i)), result));
  }
#pragma unroll 2
  for (i64 i = first; i < of.others; i += step) {
    const i64 at = of.column(i) * T::kBytes;
    T::store(grad_x + at, result(0, T::load(grad + at), T::load(y + at)));
  }
  zero_from<T>(grad_x, open, a.columns, a.vectors);
}

// A row without a diagonal in the registers of a cluster of blocks, up to V vectors per thread of each tensor.
template <class T, int V>
DEVICE void backward_wide(const BackwardArgs& a) {
#if PRECAST_HAS_CLUSTERS
  cluster_begins();
  next_launch_may_start();
  launch_before_has_ended();
  const ClusterWalk<V> walk(a.vectors);
  const auto fetch = [&](u32 row) {
    walk.fetch(0, a.grad + row * a.grad_stride);
    walk.fetch(1, a.y + row * a.y_stride);
  };
  fetch(walk.row);
  row_ends();
  cluster_has_begun();

  Rounds<> rounds;
  for (u32 row = walk.row; row < a.rows; row += walk.clusters) {
    Vector g[V], v[V];
    arrived<0>();
    walk.take(0, g);
    walk.take(1, v);
    float sums[1] = {0.0f};
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) sums[0] = dot<T>(g[j], v[j], T::kPerVector, sums[0]);
    }
    if (row + walk.clusters < a.rows) fetch(row + walk.clusters);
    row_ends();
    rounds.sums(sums);

    char* grad_x = a.grad_x + row * a.grad_x_stride;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!walk.has(j)) continue;
      store(grad_x + walk.offset(j),
            combine<T>(g[j], v[j], [&](int, float p, float q) { return a.scale * (q * (p - sums[0])); }));
    }
  }
#endif
}

SOFTMAX_BACKWARD_KERNELS(KERNEL)

}  // namespace softmax
}  // namespace precast
