// RMS norms with a gate on the GPU, and norms by length:
//
//   n = x, or x gate(g)    r = rsqrt(scale sum(n^2) + eps)    y = n r w, or n r w gate(g)
//
// Arithmetic is in float32. A row is read once, but by the `any` kernel twice.
#include "../gpu/early.cuh"
#include "entries.h"
#include "gated_norm_row.cuh"

namespace precast {
namespace gated_norm {

// What follows the sum, of one element: n r, its weight, and the gate.
template <class T>
DEVICE float result_of(const ForwardArgs& a, float normal, float weight, float gate) {
  const bool last = a.gate != nullptr && a.gate_first == 0;
  if (a.llama != 0) normal = T::round(normal);
  float y = normal * weight;
  if (!last) return y;
  if (a.llama != 0 && a.wide == 0) y = T::round(y);
  return y * gate_at(gate, a.sigmoid).value;
}

// A row in registers, a vector per thread.
template <class T>
DEVICE void forward_row(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y, vector = threadIdx.x;
  if (row >= a.rows) return;  // only if blockDim.y > 1, and then there is no barrier
  const Row at(a, row);
  const i64 bytes = a.hidden * T::kBytes;
  Vector v = {{0, 0, 0, 0}}, g = v;
  Columns<T, true> w;
  const bool taken = vector < a.vectors;
  if (taken) {
    v = load(at.at(a.x, a.x_stride, bytes) + vector * 16);
    if (a.gate != nullptr) g = load(at.at(a.gate, a.gate_stride, bytes) + vector * 16);
    w.load_or_fill(a.weight, static_cast<i64>(at.group) * a.vectors + vector, a.wide, 1.0f);
  }
  float n[T::kPerVector], squares = 0.0f;
  for_elements<T>(v, [&](int e, float value) { n[e] = value; });
  if (a.gate != nullptr && a.gate_first != 0) {
    for_elements<T>(g, [&](int e, float value) { n[e] *= gate_at(value, a.sigmoid).value; });
  }
#pragma unroll
  for (int e = 0; e < T::kPerVector; ++e) squares = fmaf(n[e], n[e], squares);
  const float r = rsqrtf(row_sum(squares, shared) * a.scale + a.eps);
  if (!taken) return;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float p[T::kPerWord], q[T::kPerWord];
    w.unpack(k, p);
    T::unpack(g.word[k], q);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) p[e] = result_of<T>(a, n[k * T::kPerWord + e] * r, p[e], q[e]);
    v.word[k] = T::pack(p);
  }
  store(a.y + row * bytes + vector * 16, v);
}

// Any row, one element at a time.
template <class T>
DEVICE void forward_any(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[32];
  begin_launch(a.early);
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const Row at(a, row);
  const i64 bytes = a.hidden * T::kBytes;
  const char *x = at.at(a.x, a.x_stride, bytes), *gate = at.at(a.gate, a.gate_stride, bytes);
  const auto number = [&](i64 i, float g) {
    const float value = T::load(x + i * T::kBytes);
    return a.gate != nullptr && a.gate_first != 0 ? value * gate_at(g, a.sigmoid).value : value;
  };
  const auto gate_of = [&](i64 i) { return a.gate != nullptr ? T::load(gate + i * T::kBytes) : 0.0f; };
  float squares = 0.0f;
#pragma unroll 2
  for (i64 i = threadIdx.x; i < a.hidden; i += blockDim.x) {
    const float n = number(i, gate_of(i));
    squares = fmaf(n, n, squares);
  }
  const float r = rsqrtf(row_sum(squares, shared) * a.scale + a.eps);
  char* y = a.y + row * bytes;
#pragma unroll 2
  for (i64 i = threadIdx.x; i < a.hidden; i += blockDim.x) {
    const float g = gate_of(i), w = a.weight != nullptr ? column<T>(a.weight, at.group * a.hidden + i, a.wide) : 1.0f;
    T::store(y + i * T::kBytes, result_of<T>(a, number(i, g) * r, w, g));
  }
}

RMS_NORM_GATED_KERNELS(KERNEL)

}  // namespace gated_norm
}  // namespace precast
