// Gated activations on the GPU: y = round(round(activation(gate)) * factor). See host.cpp for the choice of kernels.
//
// The activation is rounded to the dtype before the product, and its formula is that of torch's own kernels. So the
// result is bitwise that of torch's two ops in sequence. Arithmetic is in float32.
#include "gated.cuh"

namespace precast {
namespace activations {

struct Silu {
  static DEVICE float value(float x) { return x / (1.0f + expf(-x)); }
};

struct Gelu {
  static DEVICE float value(float x) { return x * 0.5f * (1.0f + erff(x * 0.70710678f)); }
};

struct GeluTanh {
  static DEVICE float value(float x) {
    const float cube = x * x * x;
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * cube)));
  }
};

// One vector of 16 bytes of each half.
template <class T, class Function>
DEVICE void forward_vectors(const ForwardArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  const i64 offset = at.row * a.x_stride + static_cast<i64>(at.column) * 16;
  const Vector gate = load_constant(a.gate + offset), factor = load_constant(a.factor + offset);
  const Vector active = combine<T>(gate, gate, [](int, float g, float) { return Function::value(g); });
  store(a.y + at.row * a.y_stride + static_cast<i64>(at.column) * 16,
        combine<T>(active, factor, [](int, float s, float f) { return s * f; }));
}

DEVICE float activate(int activation, float x) {
  return activation == kSilu ? Silu::value(x) : activation == kGelu ? Gelu::value(x) : GeluTanh::value(x);
}

// A row at any address. Each thread computes one aligned vector of y, from the two vectors that its elements touch in
// each half.
template <class T, class Function>
DEVICE void gated_shifted(const ForwardArgs& a, const Place& of, const Shifted<T>& at, char* y) {
  const char *first = a.gate < a.factor ? a.gate : a.factor, *second = a.gate < a.factor ? a.factor : a.gate;
  const char* end = second + static_cast<i64>(quotient(a.units.total - 1, a.units.columns)) * a.x_stride + a.row_bytes;
  const i64 offset = of.row * a.x_stride + static_cast<i64>(of.column) * 16 - at.lead;
  const Vector gate = load_anywhere<T>(a.gate + offset, first, end);
  const Vector factor = load_anywhere<T>(a.factor + offset, first, end);
  const Vector active = combine<T>(gate, gate, [](int, float g, float) { return Function::value(g); });
  at.store_to(y, of.column, combine<T>(active, factor, [](int, float s, float f) { return s * f; }));
}

template <class T>
DEVICE void forward_shifted(const ForwardArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place of = place_of(index, a.units);
  char* y = a.y + of.row * a.y_stride;
  const Shifted<T> at(y, a.row_bytes);
  if (of.column >= at.count) return;
  if (a.activation == kSilu) gated_shifted<T, Silu>(a, of, at, y);
  if (a.activation == kGelu) gated_shifted<T, Gelu>(a, of, at, y);
  if (a.activation == kGeluTanh) gated_shifted<T, GeluTanh>(a, of, at, y);
}

// Any row, one element at a time.
template <class T>
DEVICE void forward_any(const ForwardArgs& a) {
  const u32 first = blockIdx.x * (kThreads * kElements) + threadIdx.x;
  float gate[kElements], factor[kElements];
  char* y[kElements];
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    const u32 index = first + j * kThreads;
    if (index < a.units.total) {
      const Place at = place_of(index, a.units);
      const i64 offset = at.row * a.x_stride + static_cast<i64>(at.column) * T::kBytes;
      gate[j] = T::load(a.gate + offset);
      factor[j] = T::load(a.factor + offset);
      y[j] = a.y + at.row * a.y_stride + static_cast<i64>(at.column) * T::kBytes;
    }
  }
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    if (first + j * kThreads < a.units.total) T::store(y[j], T::round(activate(a.activation, gate[j])) * factor[j]);
  }
}

}  // namespace activations
}  // namespace precast

KERNEL(silu_and_mul_f32, ForwardArgs, 64, 2048, forward_vectors<Float32, Silu>)
KERNEL(gelu_and_mul_f32, ForwardArgs, 64, 1536, forward_vectors<Float32, Gelu>)
KERNEL(gelu_tanh_and_mul_f32, ForwardArgs, 64, 2048, forward_vectors<Float32, GeluTanh>)
KERNEL(gated_activation_f32_any, ForwardArgs, 64, 1024, forward_any<Float32>)
KERNEL(gated_activation_f32_shifted, ForwardArgs, 64, 1024, forward_shifted<Float32>)

KERNEL(silu_and_mul_f16, ForwardArgs, 64, 2048, forward_vectors<Float16, Silu>)
KERNEL(gelu_and_mul_f16, ForwardArgs, 64, 1536, forward_vectors<Float16, Gelu>)
KERNEL(gelu_tanh_and_mul_f16, ForwardArgs, 64, 2048, forward_vectors<Float16, GeluTanh>)
KERNEL(gated_activation_f16_any, ForwardArgs, 64, 1024, forward_any<Float16>)
KERNEL(gated_activation_f16_shifted, ForwardArgs, 64, 1024, forward_shifted<Float16>)

KERNEL(silu_and_mul_bf16, ForwardArgs, 64, 2048, forward_vectors<BFloat16, Silu>)
KERNEL(gelu_and_mul_bf16, ForwardArgs, 64, 1536, forward_vectors<BFloat16, Gelu>)
KERNEL(gelu_tanh_and_mul_bf16, ForwardArgs, 64, 2048, forward_vectors<BFloat16, GeluTanh>)
KERNEL(gated_activation_bf16_any, ForwardArgs, 64, 1024, forward_any<BFloat16>)
KERNEL(gated_activation_bf16_shifted, ForwardArgs, 64, 1024, forward_shifted<BFloat16>)
