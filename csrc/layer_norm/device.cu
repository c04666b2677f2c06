// LayerNorm on the GPU. See host.cpp for which kernel serves which shape.
//
//   r = rsqrt(mean((x - mean(x))^2) + eps)    y = (x - mean(x)) r weight + bias
//
// All arithmetic is in float32. A row is read once and stays in registers over the two sums, one barrier each, unless
// it is too wide or cannot be moved by 16 bytes: the `any` kernels take every row, and read it three times.
#include "row.cuh"

namespace precast {
namespace layer_norm {

// A thread's share of the weight or the bias. Minus zero as a bias leaves every number as it is, a negative zero
// included.
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

// (x - mean) r weight + bias
template <class T>
DEVICE Vector normal(const Vector& x, const Statistics& of, const Vector& weight, const Vector& bias) {
  Vector result;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float p[T::kPerWord], q[T::kPerWord], s[T::kPerWord];
    T::unpack(x.word[k], p);
    T::unpack(weight.word[k], q);
    T::unpack(bias.word[k], s);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) p[e] = fmaf((p[e] - of.mean) * of.r, q[e], s[e]);
    result.word[k] = T::pack(p);
  }
  return result;
}

// One row per block, V vectors per thread at distances of blockDim.x; or, for short rows, one row per warp.
template <class T, int V>
DEVICE void forward_row(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[32];
  alignas(16) __shared__ float shared_pairs[64];
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // only where blockDim.y > 1, and there is no barrier there
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

  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < a.vectors) for_elements<T>(v[j], [&](int, float p) { sum += p; });
  }
  const float mean = row_sum(sum, shared) * a.inverse_hidden;

  float deviations = 0.0f, squares = 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < a.vectors) {
      for_elements<T>(v[j], [&](int, float p) {
        const float d = p - mean;
        deviations += d;
        squares = fmaf(d, d, squares);
      });
    }
  }
  const TwoSums sums = row_sums(deviations, squares, shared_pairs);
  const Statistics of = corrected(mean, sums.first, sums.second, a.inverse_hidden, a.eps);

  // Only now: loaded before the sums they would take registers from the rows of other blocks.
  Vector w[V], b[V];
  load_columns<T>(w, a.weight, a.vectors, 1.0f);
  load_columns<T>(b, a.bias, a.vectors, -0.0f);
  char* y = a.y + row * a.y_stride;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < a.vectors) store(y + (first + j * step) * 16, normal<T>(v[j], of, w[j], b[j]));
  }
}

// Calls body(element) for a thread's share of a row: what can be moved by 16 bytes first, the rest one at a time.
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
  alignas(16) __shared__ float shared[32];
  alignas(16) __shared__ float shared_pairs[64];
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;

  const char* x = a.x + row * a.x_stride;
  float sum = 0.0f;
  over_row<T>(x, a, [&](float p) { sum += p; });
  const float mean = row_sum(sum, shared) * a.inverse_hidden;
  // A thread may add hundreds of numbers: what each addition rounds away is kept and added at the end.
  float deviations = 0.0f, deviations_lost = 0.0f, squares = 0.0f, squares_lost = 0.0f;
  over_row<T>(x, a, [&](float p) {
    const float d = p - mean, total = deviations + d, added = total - deviations, square = fmaf(d, d, squares);
    deviations_lost += (deviations - (total - added)) + (d - added);
    squares_lost += fmaf(d, d, squares - square);
    deviations = total;
    squares = square;
  });
  const TwoSums sums = row_sums(deviations + deviations_lost, squares + squares_lost, shared_pairs);
  const Statistics of = corrected(mean, sums.first, sums.second, a.inverse_hidden, a.eps);

  char* y = a.y + row * a.y_stride;
  const i64 step = blockDim.x, vectors = a.vectors;
#pragma unroll 1
  for (i64 i = threadIdx.x; i < vectors; i += step) {
    const Vector w = a.weight != nullptr ? load_constant(a.weight + i * 16) : filled<T>(1.0f);
    const Vector b = a.bias != nullptr ? load_constant(a.bias + i * 16) : filled<T>(-0.0f);
    store(y + i * 16, normal<T>(load(x + i * 16), of, w, b));
  }
#pragma unroll 2
  for (i64 i = vectors * T::kPerVector + threadIdx.x; i < a.hidden; i += step) {
    const float q = a.weight != nullptr ? T::load(a.weight + i * T::kBytes) : 1.0f;
    const float s = a.bias != nullptr ? T::load(a.bias + i * T::kBytes) : -0.0f;
    T::store(y + i * T::kBytes, fmaf((T::load(x + i * T::kBytes) - of.mean) * of.r, q, s));
  }
}

}  // namespace layer_norm
}  // namespace precast

KERNEL(layer_norm_f32_v2, ForwardArgs, 256, 1536, forward_row<Float32, 2>)
KERNEL(layer_norm_f32_v4, ForwardArgs, 512, 1024, forward_row<Float32, 4>)
KERNEL(layer_norm_f32_any, ForwardArgs, 512, 1024, forward_any<Float32>)

KERNEL(layer_norm_f16_v2, ForwardArgs, 256, 1536, forward_row<Float16, 2>)
KERNEL(layer_norm_f16_v4, ForwardArgs, 512, 1024, forward_row<Float16, 4>)
KERNEL(layer_norm_f16_any, ForwardArgs, 512, 1024, forward_any<Float16>)

KERNEL(layer_norm_bf16_v2, ForwardArgs, 256, 1536, forward_row<BFloat16, 2>)
KERNEL(layer_norm_bf16_v4, ForwardArgs, 512, 1024, forward_row<BFloat16, 4>)
KERNEL(layer_norm_bf16_any, ForwardArgs, 512, 1024, forward_any<BFloat16>)
