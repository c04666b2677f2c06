// LayerNorm on the GPU. See layer_norm.cpp for which kernel serves which shape.
//
//   r = rsqrt(mean((x - mean(x))^2) + eps)    y = (x - mean(x)) r weight + bias
//
// All arithmetic is in float32. A row is read once and stays in registers until the result is written. Rows that are
// too wide for that use the `any` kernels, which take any row and read it three times.
#include "../gpu/cluster.cuh"
#include "../gpu/columns.cuh"
#include "entries.h"
#include "layer_norm_row.cuh"

namespace precast {
namespace layer_norm {

// A thread's share of the weight or the bias. An absent bias is minus zero, which leaves every number unchanged,
// including a negative zero.
template <class T, int V>
DEVICE void load_columns(Vector (&v)[V], const char* from, u32 vectors, float absent) {
  if (from == nullptr) {
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = filled<T>(absent);
    return;
  }
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 i = threadIdx.x + j * blockDim.x;
    if (i < vectors) v[j] = load_constant(from + i * 16);
  }
}

template <class T>
DEVICE void unpack_word(const Vector& from, int k, float (&to)[T::kPerWord]) {
  T::unpack(from.word[k], to);
}

template <class T>
DEVICE void unpack_word(const Columns<T, true>& from, int k, float (&to)[T::kPerWord]) {
  from.unpack(k, to);
}

// (x - mean) r weight + bias. The difference is computed first, so it is zero where x is the mean.
template <class T, class Parameters>
DEVICE Vector normal(const Vector& x, float mean, float r, const Parameters& weight, const Parameters& bias) {
  Vector result;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float p[T::kPerWord], q[T::kPerWord], s[T::kPerWord];
    T::unpack(x.word[k], p);
    unpack_word<T>(weight, k, q);
    unpack_word<T>(bias, k, s);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) p[e] = fmaf((p[e] - mean) * r, q[e], s[e]);
    result.word[k] = T::pack(p);
  }
  return result;
}

struct Statistics {
  float mean, r;
};

// The statistics of a row in registers. add(around, sums) adds d = x - around and d^2 for a thread's share.
template <class Add>
DEVICE Statistics statistics(const ForwardArgs& a, float hidden, const Add& add, float (&shared)[2][3 * 32]) {
  float sums[2] = {0.0f, 0.0f};
  add(0.0f, sums);
  row_sums(sums, shared[0]);
  float mean = divided(sums[0], hidden, a.inverse_hidden);
  float squares = fmaf(-mean, sums[0], sums[1]);
  const bool far = far_from_zero(mean, squares, hidden);
  if (taken_together(far)) {
    float again[2] = {0.0f, 0.0f};
    add(mean, again);
    row_sums(again, shared[1]);
    const float rest = divided(again[0], hidden, a.inverse_hidden);
    if (far) {
      squares = fmaf(-rest, again[0], again[1]);
      mean += rest;
    }
  }
  return {mean, inverse_deviation(squares, a.inverse_hidden, a.eps)};
}

// One row per block, or one row per warp for short rows. Each thread has V vectors, blockDim.x apart.
template <class T, int V>
DEVICE void forward_row(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[2][3 * 32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // only if blockDim.y > 1, and then there is no barrier
  const u32 first = threadIdx.x, step = blockDim.x;

  const char* x = a.x + row * a.x_stride;
  Vector v[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < a.vectors) v[j] = load(x + (first + j * step) * 16);
  }
  if (first == 0 && a.prefetch != 0 && row + a.prefetch < a.rows) {
    prefetch(x + a.prefetch * a.x_stride, a.vectors * 16);
  }

  const float hidden = static_cast<float>(a.hidden);
  // Sums d = x - around, and d^2.
  const auto add = [&](float around, float (&sums)[2]) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (first + j * step >= a.vectors) continue;
      for_elements<T>(v[j], [&](int, float p) {
        const float d = p - around;
        sums[0] += d;
        sums[1] = fmaf(d, d, sums[1]);
      });
    }
  };
  const Statistics of = statistics(a, hidden, add, shared);

  // Not earlier: before the sums, these loads would take registers from the rows of other blocks.
  Vector w[V], b[V];
  load_columns<T>(w, a.weight, a.vectors, 1.0f);
  load_columns<T>(b, a.bias, a.vectors, -0.0f);
  char* y = a.y + row * a.y_stride;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < a.vectors) store(y + (first + j * step) * 16, normal<T>(v[j], of.mean, of.r, w[j], b[j]));
  }
}

// The same for rows that do not begin at multiples of 16 bytes.
template <class T, int V>
DEVICE void forward_shifted(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[2][3 * 32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const u32 first = threadIdx.x, step = blockDim.x, bytes = static_cast<u32>(a.hidden) * T::kBytes;
  char* y = a.y + row * a.y_stride;
  const Shifted<T> at(y, bytes);

  const char* end = a.x + static_cast<i64>(a.rows - 1) * a.x_stride + bytes;
  Vector v[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    if (k < at.count) v[j] = at.load_from(a.x + row * a.x_stride, k, a.x, end);
  }

  const float hidden = static_cast<float>(a.hidden);
  const auto add = [&](float around, float (&sums)[2]) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const u32 k = first + j * step;
      if (k >= at.count) continue;
      const bool whole = at.whole(k);
      for_elements<T>(v[j], [&](int i, float p) {
        const float d = whole || at.holds(k, i, bytes) ? p - around : 0.0f;
        sums[0] += d;
        sums[1] = fmaf(d, d, sums[1]);
      });
    }
  };
  const Statistics of = statistics(a, hidden, add, shared);

  const ShiftedColumns weight = ShiftedColumns::of<T>(a.weight, a.weight != nullptr ? bytes : 0);
  const ShiftedColumns bias = ShiftedColumns::of<T>(a.bias, a.bias != nullptr ? bytes : 0);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    if (k >= at.count) continue;
    const Vector w = a.weight != nullptr ? weight.at(k, at.lead) : filled<T>(1.0f);
    const Vector b = a.bias != nullptr ? bias.at(k, at.lead) : filled<T>(-0.0f);
    at.store_to(y, k, normal<T>(v[j], of.mean, of.r, w, b));
  }
}

// Calls body(element) for a thread's share of a row: first what can be moved by 16 bytes, then the rest one at a time.
template <class T, class Body>
DEVICE void over_row(const char* x, const ForwardArgs& a, const Body& body) {
  const i64 step = blockDim.x, vectors = a.vectors;
#pragma unroll 1
  for (i64 i = threadIdx.x; i < vectors; i += step) {
    for_elements<T>(load(x + i * 16), [&](int, float p) { body(p); });
  }
#pragma unroll 2
  for (i64 i = vectors * T::kPerVector + threadIdx.x; i < a.hidden; i += step) body(T::load(x + i * T::kBytes));
}

template <class T>
DEVICE void forward_any(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[2][3 * 32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;

  const char* x = a.x + row * a.x_stride;
  const float hidden = static_cast<float>(a.hidden);
  float sum = 0.0f;
  over_row<T>(x, a, [&](float p) { sum += p; });
  float mean = divided(row_sum(sum, shared[0]), hidden, a.inverse_hidden);
  float sums[2] = {0.0f, 0.0f};
  over_row<T>(x, a, [&](float p) {
    const float d = p - mean;
    sums[0] += d;
    sums[1] = fmaf(d, d, sums[1]);
  });
  row_sums(sums, shared[1]);
  const float rest = divided(sums[0], hidden, a.inverse_hidden);
  mean += rest;
  const float r = inverse_deviation(fmaf(-rest, sums[0], sums[1]), a.inverse_hidden, a.eps);

  char* y = a.y + row * a.y_stride;
  const i64 step = blockDim.x, vectors = a.vectors;
#pragma unroll 1
  for (i64 i = threadIdx.x; i < vectors; i += step) {
    Columns<T, true> w, b;
    w.load_or_fill(a.weight, i, a.wide, 1.0f);
    b.load_or_fill(a.bias, i, a.wide, -0.0f);
    store(y + i * 16, normal<T>(load(x + i * 16), mean, r, w, b));
  }
#pragma unroll 2
  for (i64 i = vectors * T::kPerVector + threadIdx.x; i < a.hidden; i += step) {
    const float q = a.weight != nullptr ? column<T>(a.weight, i, a.wide) : 1.0f;
    const float s = a.bias != nullptr ? column<T>(a.bias, i, a.wide) : -0.0f;
    T::store(y + i * T::kBytes, fmaf((T::load(x + i * T::kBytes) - mean) * r, q, s));
  }
}

// A row in the registers of a cluster of blocks, up to V vectors per thread.
template <class T, int V>
DEVICE void forward_wide(const ForwardArgs& a) {
#if PRECAST_HAS_CLUSTERS
  cluster_begins();
  next_launch_may_start();
  launch_before_has_ended();
  const ClusterWalk<V> walk(a.vectors);
  const bool wide = T::kBytes == 2 && a.wide != 0;
  if (!wide) {  // they stay in shared memory; float32 parameters of narrower rows are read again
    if (a.weight != nullptr) walk.fetch(1, a.weight);
    if (a.bias != nullptr) walk.fetch(2, a.bias);
  }
  walk.fetch(0, a.x + walk.row * a.x_stride);
  row_ends();
  cluster_has_begun();

  const float hidden = static_cast<float>(a.hidden);
  Rounds<> rounds;
  for (u32 row = walk.row; row < a.rows; row += walk.clusters) {
    Vector v[V];
    arrived<0>();
    walk.take(0, v);
    float mean = 0.0f, squares = 0.0f;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      float sums[2] = {0.0f, 0.0f};  // of d = x - mean, and d^2
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!walk.has(j)) continue;
        for_elements<T>(v[j], [&](int, float p) {
          const float d = p - mean;
          sums[0] += d;
          sums[1] = fmaf(d, d, sums[1]);
        });
      }
      if (pass == 0) {
        if (row + walk.clusters < a.rows) walk.fetch(0, a.x + (row + walk.clusters) * a.x_stride);
        row_ends();
      }
      rounds.sums(sums);
      const float rest = divided(sums[0], hidden, a.inverse_hidden);
      squares = fmaf(-rest, sums[0], sums[1]);
      mean += rest;
      if (!far_from_zero(mean, squares, hidden)) break;  // the same in all blocks
    }
    const float r = inverse_deviation(squares, a.inverse_hidden, a.eps);

    char* y = a.y + row * a.y_stride;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!walk.has(j)) continue;
      if (wide) {
        Columns<T, true> w, b;
        w.load_or_fill(a.weight, walk.first + j * walk.step, true, 1.0f);
        b.load_or_fill(a.bias, walk.first + j * walk.step, true, -0.0f);
        store(y + walk.offset(j), normal<T>(v[j], mean, r, w, b));
      } else {
        const Vector w = a.weight != nullptr ? load_shared(walk.place(1, j)) : filled<T>(1.0f);
        const Vector b = a.bias != nullptr ? load_shared(walk.place(2, j)) : filled<T>(-0.0f);
        store(y + walk.offset(j), normal<T>(v[j], mean, r, w, b));
      }
    }
  }
#endif
}

// Compilers for other GPUs need more registers to avoid spills.
#if PRECAST_ARCH / 100 == 9
#define SHIFTED_RESIDENT 1024
#else
#define SHIFTED_RESIDENT 512
#endif

LAYER_NORM_KERNELS(KERNEL)

}  // namespace layer_norm
}  // namespace precast
