// The gradients of RMSNorm on the GPU. See rms_norm_backward.cpp for which kernel serves which shape.
//
//   r = rsqrt(mean(x^2) + eps)    m = mean(g w x r)    w is weight, or 1 + weight
//   grad_x = r (g w - x r m)      grad_weight = sum over rows of g x r
//
// All arithmetic is in float32. The rounding of the forward counts as the identity. The sums over rows have a fixed
// order, so the result is bitwise reproducible.
#include "../gpu/cluster.cuh"
#include "../gpu/columns.cuh"
#include "entries.h"
#include "rms_norm_row.cuh"

namespace precast {
namespace rms_norm {

// Walks over a worker's rows, with the row, its gradient and the share of grad_weight in registers. If four vectors of
// 16-bit numbers do not fit in registers, they are read from shared memory again. kShifted: rows begin anywhere
// (walk.cuh); what a vector holds beside its row is zero.
template <class T, int V, bool kPair = false, bool kCluster = false, bool kShifted = false>
DEVICE void backward_rows(const BackwardArgs& a) {
  alignas(16) __shared__ float shared[2][3 * 32];
  const u32 worker = kCluster ? cluster_number() : blockIdx.x * blockDim.y + threadIdx.y;
  const u32 first = threadIdx.x, step = blockDim.x;
  const float offset = weight_offset(a.casting);
  constexpr bool kKept = V <= 2 || T::kBytes == 4;
  const Shifted<T> at(a.x + worker * a.x_stride, static_cast<u32>(a.hidden) * T::kBytes);
  if constexpr (kCluster) cluster_begins();
  next_launch_may_start();

  Columns<T, V == 2> w[V];
  float part[V][T::kPerVector];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if constexpr (kShifted) w[j].fill(0.0f);
    if (first + j * step < a.vectors) {
      if constexpr (kShifted) {
        w[j].load_shifted(a.weight, first + j * step, at, a.wide);
      } else {
        w[j].load(a.weight, first + j * step, a.wide);
      }
    }
#pragma unroll
    for (int e = 0; e < T::kPerVector; ++e) part[j][e] = 0.0f;
  }

  using Walking = Walk<V, kPair, kShifted>;
  Walking walk = kShifted ? Walking(a, worker, at.lead, at.count, at.tail()) : Walking(a, worker);
  char* grad_x = a.grad_x + worker * a.grad_x_stride + (kShifted ? 0 : first * 16);
  const char* grad_sum = a.grad_sum + worker * a.grad_sum_stride + (kShifted ? 0 : first * 16);
  const char* grad_sum_end = a.grad_sum + (a.rows - 1) * a.grad_sum_stride + at.bytes;
  if constexpr (kCluster) cluster_has_begun();
  Rounds<> rounds;
  u32 parity = 0;  // a thread that runs ahead writes to the other half, which is not being read
  for (; walk.left > 0; parity ^= 1) {
    Vector v[V], g[V], added[V];
    if constexpr (kKept) {
      walk.take(v, g);
    } else {
      walk.hold();
    }
    if (kShifted && first == 0) {  // what lies before the row; behind it there are zeros
      v[0] = at.cut(0, v[0], at.bytes);
      g[0] = at.cut(0, g[0], at.bytes);
    }
    const auto load_added = [&](int j) {
      added[j] = Vector{{0, 0, 0, 0}};
      if (a.grad_sum == nullptr || !walk.taken[j]) return;
      if constexpr (kShifted) {
        added[j] = at.load_from(grad_sum, first + j * step, a.grad_sum, grad_sum_end);
      } else {
        added[j] = load_constant(grad_sum + j * step * 16);
      }
    };
    if constexpr (V <= 2) {  // before the sums, if there are enough registers
#pragma unroll
      for (int j = 0; j < V; ++j) load_added(j);
    }

    float squares = 0.0f, products = 0.0f;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.taken[j]) {
        if constexpr (!kKept) walk.take_held(j, v[j], g[j]);
        squares = sum_of_squares<T>(v[j], squares);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float p[T::kPerWord], q[T::kPerWord], s[T::kPerWord];
          T::unpack(v[j].word[k], p);
          T::unpack(g[j].word[k], q);
          w[j].unpack(k, s);
#pragma unroll
          for (int e = 0; e < T::kPerWord; ++e) products = fmaf(q[e] * (s[e] + offset), p[e], products);
        }
      }
    }
    float sums[2] = {squares, products};
    row_sums(sums, shared[parity]);
    if constexpr (kCluster) rounds.add_blocks(sums);
    const float r = rsqrtf(sums[0] * a.inverse_hidden + a.eps);
    const float mean = sums[1] * r * a.inverse_hidden;

#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.taken[j]) {
        if constexpr (V > 2) load_added(j);
        if constexpr (!kKept) walk.take_held(j, v[j], g[j]);
        Vector result;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float p[T::kPerWord], q[T::kPerWord], s[T::kPerWord], t[T::kPerWord];
          T::unpack(v[j].word[k], p);
          T::unpack(g[j].word[k], q);
          w[j].unpack(k, s);
          T::unpack(added[j].word[k], t);
#pragma unroll
          for (int e = 0; e < T::kPerWord; ++e) {
            const float normal = p[e] * r;
            part[j][k * T::kPerWord + e] = fmaf(q[e], normal, part[j][k * T::kPerWord + e]);
            t[e] = fmaf(r, q[e] * (s[e] + offset) - normal * mean, t[e]);
          }
          result.word[k] = T::pack(t);
        }
        if constexpr (kShifted) {
          at.store_to(grad_x, first + j * step, result);
        } else {
          store(grad_x + j * step * 16, result);
        }
      }
    }
    grad_x += a.grad_x_stride * a.workers;
    grad_sum += a.grad_sum_stride * a.workers;
  }

  float* line = a.parts + (kCluster ? worker : blockIdx.x) * a.hidden;
  if constexpr (kShifted) {
    store_shifted_parts<T>(line, part, at);
  } else {
    store_parts<T>(line, part, a.vectors);
  }
}

// A cluster of blocks is a worker, and each block walks over its slice of the columns.
template <class T>
DEVICE void backward_wide(const BackwardArgs& a) {
#if PRECAST_HAS_CLUSTERS
  BackwardArgs own = a;
  const u32 begin = cluster_rank() * a.slice, left = a.vectors > begin ? a.vectors - begin : 0;
  const i64 bytes = static_cast<i64>(begin) * 16;
  own.vectors = left < a.slice ? left : a.slice;
  own.grad += bytes;
  own.x += bytes;
  own.grad_x += bytes;
  own.weight += bytes;
  if (a.grad_sum != nullptr) own.grad_sum += bytes;
  own.parts += begin * T::kPerVector;
  backward_rows<T, 4, false, true>(own);
#endif
}

// Rows that begin anywhere.
template <class T>
DEVICE void backward_shifted(const BackwardArgs& a) {
#if PRECAST_HAS_CLUSTERS
  backward_rows<T, 2, false, false, true>(a);
#endif
}

// Any row, one element at a time and read twice. The worker's line of `parts` is the accumulator.
template <class T>
DEVICE void backward_any(const BackwardArgs& a) {
  alignas(16) __shared__ float shared[2][3 * 32];
  const u32 worker = blockIdx.x * blockDim.y + threadIdx.y;
  if (worker >= a.workers) return;
  const i64 first = threadIdx.x, step = blockDim.x;
  const float offset = weight_offset(a.casting);
  float* line = a.parts + worker * a.hidden;
  next_launch_may_start();

  u32 parity = 0;
  for (i64 row = worker; row < a.rows; row += a.workers, parity ^= 1) {
    const char* x = a.x + row * a.x_stride;
    const char* grad = a.grad + row * a.grad_stride;
    float squares = 0.0f, products = 0.0f;
    for (i64 i = first; i < a.hidden; i += step) {
      const float p = T::load(x + i * T::kBytes);
      const float s = column<T>(a.weight, i, a.wide) + offset;
      squares = fmaf(p, p, squares);
      products = fmaf(T::load(grad + i * T::kBytes) * s, p, products);
    }
    float sums[2] = {squares, products};
    row_sums(sums, shared[parity]);
    const float r = rsqrtf(sums[0] * a.inverse_hidden + a.eps);
    const float mean = sums[1] * r * a.inverse_hidden;

    char* grad_x = a.grad_x + row * a.grad_x_stride;
    const char* grad_sum = a.grad_sum != nullptr ? a.grad_sum + row * a.grad_sum_stride : nullptr;
    for (i64 i = first; i < a.hidden; i += step) {
      const float normal = T::load(x + i * T::kBytes) * r;
      const float q = T::load(grad + i * T::kBytes);
      const float s = column<T>(a.weight, i, a.wide) + offset;
      const float added = grad_sum != nullptr ? T::load(grad_sum + i * T::kBytes) : 0.0f;
      T::store(grad_x + i * T::kBytes, fmaf(r, q * s - normal * mean, added));
      line[i] = row == worker ? q * normal : fmaf(q, normal, line[i]);
    }
  }
}

DEVICE void grad_weight_columns(const ColumnArgs& a) {
  add_columns(a.parts, a.hidden, a.lines, a.grad_weight, a.dtype);
}

RMS_NORM_BACKWARD_KERNELS(KERNEL)

}  // namespace rms_norm
}  // namespace precast
