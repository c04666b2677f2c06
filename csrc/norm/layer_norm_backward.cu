// The gradients of LayerNorm on the GPU. See layer_norm_backward.cpp for which kernel serves which shape.
//
//   n = (x - mean(x)) r    r = rsqrt(mean((x - mean(x))^2) + eps)
//   grad_x = r (g w - mean(g w) - n mean(g w n))
//   grad_weight = sum over rows of g n      grad_bias = sum over rows of g
//
// The statistics are recomputed from x, which is read anyway: two barriers per row, and the forward saves nothing. All
// arithmetic is in float32. The sums over rows have a fixed order, so the result is bitwise reproducible.
#include "../gpu/cluster.cuh"
#include "../gpu/columns.cuh"
#include "entries.h"
#include "layer_norm_row.cuh"

namespace precast {
namespace layer_norm {

// The numbers of a row that its elements need: grad_x = r h + slope n + offset.
struct RowGradient {
  float mean, r, slope, offset;
};

DEVICE RowGradient row_gradient(const BackwardArgs& a, float mean, float squares, float gradients, float products) {
  const float r = inverse_deviation(squares, a.inverse_hidden, a.eps);
  return {mean, r, -r * (r * products * a.inverse_hidden), -r * (gradients * a.inverse_hidden)};
}

// Walks over a worker's rows, with the row, its gradient and the shares of the two sums in registers. If four vectors
// of 16-bit numbers do not fit in registers, they and the weight are read from shared memory again. Two pieces of
// shared memory alternate: between two writes to one of them lies the barrier of the other. kShifted: rows begin
// anywhere (walk.cuh); what a vector holds beside its row is zero, and so are the weight and the gradient there.
template <class T, int V, bool kPair = false, bool kCluster = false, bool kShifted = false>
DEVICE void backward_rows(const BackwardArgs& a) {
  alignas(16) __shared__ float shared[kCluster ? 2 : 3][5 * 32];
  const u32 worker = kCluster ? cluster_number() : blockIdx.x * blockDim.y + threadIdx.y;
  const u32 first = threadIdx.x, step = blockDim.x;
  const float hidden = static_cast<float>(a.hidden);
  constexpr bool kKept = V <= 2 || T::kBytes == 4;
  const Shifted<T> at(a.x + worker * a.x_stride, static_cast<u32>(a.hidden) * T::kBytes);
  if constexpr (kCluster) cluster_begins();
  next_launch_may_start();

  Columns<T, V == 2> w[V];
  float weight_part[V][T::kPerVector], bias_part[V][T::kPerVector];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    w[j].fill(1.0f);
    if (a.weight != nullptr && first + j * step < a.vectors) {
      if constexpr (kShifted) {
        w[j].load_shifted(a.weight, first + j * step, at, a.wide);
      } else if constexpr (kKept) {
        w[j].load(a.weight, first + j * step, a.wide);
      } else {
        copy(behind_ring(a) + j * step * 16, a.weight + (first + j * step) * 16);  // it arrives with the first row
      }
    }
#pragma unroll
    for (int e = 0; e < T::kPerVector; ++e) weight_part[j][e] = bias_part[j][e] = 0.0f;
  }

  using Walking = Walk<V, kPair, kShifted>;
  Walking walk = kShifted ? Walking(a, worker, at.lead, at.count, at.tail()) : Walking(a, worker);
  char* grad_x = a.grad_x + worker * a.grad_x_stride + (kShifted ? 0 : first * 16);
  if constexpr (kCluster) cluster_has_begun();
  Rounds<> rounds;
  u32 parity = 0;  // a thread that runs ahead writes to the other half, which is not being read
  for (; walk.left > 0; parity ^= 1) {
    Vector v[V], g[V];
    if constexpr (kKept) {
      walk.take(v, g);
    } else {
      walk.hold();
    }
    if (kShifted && first == 0) {  // what lies before the row; behind it there are zeros
      v[0] = at.cut(0, v[0], at.bytes);
      g[0] = at.cut(0, g[0], at.bytes);
    }

    const auto load_again = [&](int j) {
      walk.take_held(j, v[j], g[j]);
      w[j].v = a.weight != nullptr ? load_shared(behind_ring(a) + j * step * 16) : filled<T>(1.0f);
    };

    // Sums d = x - around, d^2, h = g w and h d.
    const auto add = [&](float around, float (&sums)[4], bool first_pass) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!walk.taken[j]) continue;
        if constexpr (!kKept) load_again(j);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float p[T::kPerWord], q[T::kPerWord], s[T::kPerWord];
          T::unpack(v[j].word[k], p);
          T::unpack(g[j].word[k], q);
          w[j].unpack(k, s);
#pragma unroll
          for (int e = 0; e < T::kPerWord; ++e) {
            const bool in_row = !kShifted || first_pass || at.holds(first + j * step, k * T::kPerWord + e, at.bytes);
            const float d = in_row ? p[e] - around : 0.0f, h = q[e] * s[e];
            sums[0] += d;
            sums[1] = fmaf(d, d, sums[1]);
            sums[2] += h;
            sums[3] = fmaf(h, d, sums[3]);
          }
        }
      }
    };
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    add(0.0f, sums, true);
    row_sums(sums, shared[kCluster ? rounds.set() : parity]);
    if constexpr (kCluster) rounds.add_blocks(sums);
    float mean = divided(sums[0], hidden, a.inverse_hidden);
    float squares = fmaf(-mean, sums[0], sums[1]), products = fmaf(-mean, sums[2], sums[3]);
    // Repeats the sums around the mean. In float32 these may have lost digits as well.
    const bool far = far_from_zero(mean, squares, hidden);
    if (V == 1 ? taken_together(far) : far) {
      if constexpr (T::kBytes == 4) {
        if (far) {
          shift<T>(v, mean, a.vectors);
          mean = 0.0f;
        }
      }
      float again[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      add(mean, again, false);
      row_sums(again, shared[kCluster ? rounds.set() : 2]);
      if constexpr (kCluster) rounds.add_blocks(again);
      const float rest = divided(again[0], hidden, a.inverse_hidden);
      if (far) {
        mean += rest;
        squares = fmaf(-rest, again[0], again[1]);
        products = fmaf(-rest, again[2], again[3]);
      }
    }
    const RowGradient of = row_gradient(a, mean, squares, sums[2], products);

#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.taken[j]) {
        if constexpr (!kKept) load_again(j);
        Vector result;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float p[T::kPerWord], q[T::kPerWord], s[T::kPerWord];
          T::unpack(v[j].word[k], p);
          T::unpack(g[j].word[k], q);
          w[j].unpack(k, s);
#pragma unroll
          for (int e = 0; e < T::kPerWord; ++e) {
            const int at = k * T::kPerWord + e;
            const float normal = (p[e] - of.mean) * of.r;
            weight_part[j][at] = fmaf(q[e], normal, weight_part[j][at]);
            bias_part[j][at] += q[e];
            p[e] = fmaf(of.r, q[e] * s[e], fmaf(of.slope, normal, of.offset));
          }
          result.word[k] = T::pack(p);
        }
        if constexpr (kShifted) {
          at.store_to(grad_x, first + j * step, result);
        } else {
          store(grad_x + j * step * 16, result);
        }
      }
    }
    grad_x += a.grad_x_stride * a.workers;
  }

  const i64 line = (kCluster ? worker : blockIdx.x) * a.hidden;
  const auto store_line = [&](float* parts, const float (&part)[V][T::kPerVector]) {
    if (parts == nullptr) return;
    if constexpr (kShifted) {
      store_shifted_parts<T>(parts + line, part, at);
    } else {
      store_parts<T>(parts + line, part, a.vectors);
    }
  };
  store_line(a.weight_parts, weight_part);
  store_line(a.bias_parts, bias_part);
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
  if (a.weight != nullptr) own.weight += bytes;
  if (a.weight_parts != nullptr) own.weight_parts += begin * T::kPerVector;
  if (a.bias_parts != nullptr) own.bias_parts += begin * T::kPerVector;
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

// Any row, one element at a time and read three times. The worker's lines of the parts are the accumulators.
template <class T>
DEVICE void backward_any(const BackwardArgs& a) {
  alignas(16) __shared__ float shared[32], shared_sums[5 * 32];
  const u32 worker = blockIdx.x * blockDim.y + threadIdx.y;
  if (worker >= a.workers) return;
  const i64 first = threadIdx.x, step = blockDim.x;
  float* weight_line = a.weight_parts != nullptr ? a.weight_parts + worker * a.hidden : nullptr;
  float* bias_line = a.bias_parts != nullptr ? a.bias_parts + worker * a.hidden : nullptr;
  next_launch_may_start();

  for (i64 row = worker; row < a.rows; row += a.workers) {
    const char* x = a.x + row * a.x_stride;
    const char* grad = a.grad + row * a.grad_stride;
    float sum = 0.0f;
#pragma unroll 2
    for (i64 i = first; i < a.hidden; i += step) sum += T::load(x + i * T::kBytes);
    const float about = divided(row_sum(sum, shared), static_cast<float>(a.hidden), a.inverse_hidden);

    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // sums of d = x - about, d^2, h = g w and h d
#pragma unroll 2
    for (i64 i = first; i < a.hidden; i += step) {
      const float d = T::load(x + i * T::kBytes) - about;
      const float h = T::load(grad + i * T::kBytes) * (a.weight != nullptr ? column<T>(a.weight, i, a.wide) : 1.0f);
      sums[0] += d;
      sums[1] = fmaf(d, d, sums[1]);
      sums[2] += h;
      sums[3] = fmaf(h, d, sums[3]);
    }
    row_sums(sums, shared_sums);
    const float rest = divided(sums[0], static_cast<float>(a.hidden), a.inverse_hidden), mean = about + rest;
    const RowGradient of = row_gradient(a, mean, fmaf(-rest, sums[0], sums[1]), sums[2], fmaf(-rest, sums[2], sums[3]));

    char* grad_x = a.grad_x + row * a.grad_x_stride;
#pragma unroll 2
    for (i64 i = first; i < a.hidden; i += step) {
      const float normal = (T::load(x + i * T::kBytes) - mean) * of.r;
      const float q = T::load(grad + i * T::kBytes);
      const float h = q * (a.weight != nullptr ? column<T>(a.weight, i, a.wide) : 1.0f);
      T::store(grad_x + i * T::kBytes, fmaf(of.r, h, fmaf(of.slope, normal, of.offset)));
      if (weight_line != nullptr) weight_line[i] = row == worker ? q * normal : fmaf(q, normal, weight_line[i]);
      if (bias_line != nullptr) bias_line[i] = row == worker ? q : bias_line[i] + q;
    }
  }
}

// Both gradients in one launch, with a row of blocks for each.
DEVICE void parameter_columns(const ColumnArgs& a) {
  const i64 lines = a.lines;
  add_columns(a.parts + blockIdx.y * lines * a.hidden, a.hidden, a.lines, blockIdx.y == 0 ? a.result : a.second,
              a.dtype);
}

// Compilers for older GPUs need more registers to avoid spills.
#if PRECAST_ARCH >= 900
#define V1_RESIDENT 1024
#else
#define V1_RESIDENT 512
#endif

LAYER_NORM_BACKWARD_KERNELS(KERNEL)

}  // namespace layer_norm
}  // namespace precast
