// Gated activations on the GPU: y = round(round(activation(gate)) * factor). See host.cpp for the choice of kernels.
//
// The activation is rounded to the dtype before the product, and its formula is that of torch's own kernels. So the
// result is bitwise that of torch's two ops in sequence. Arithmetic is in float32. swigluoai is rounded once.
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

// The activation of a vector, times the factor if there is one.
template <class T, class Function>
DEVICE Vector gated_vector(const ForwardArgs& a, const Vector& gate, const Vector& factor) {
  const Vector active = combine<T>(gate, gate, [](int, float g, float) { return Function::value(g); });
  return a.factor == nullptr ? active : combine<T>(active, factor, [](int, float s, float f) { return s * f; });
}

// One vector of 16 bytes of gates and one of factors.
template <class T, class Function>
DEVICE void forward_vectors(const ForwardArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  const i64 column = static_cast<i64>(at.column) * 16;
  const Vector gate = load_constant(a.gate + at.row * a.gate_stride + column);
  Vector factor = gate;
  if (a.factor != nullptr) factor = load_constant(a.factor + at.row * a.factor_stride + column);
  store(a.y + at.row * a.y_stride + column, gated_vector<T, Function>(a, gate, factor));
}

// An element of the result. Leave kAll unset if the activation has no kernel of its own.
template <class T, bool kAll>
DEVICE float gated_element(const ForwardArgs& a, float g, float f) {
  if (a.activation == kSwigluOai) {
    g = g > a.limit ? a.limit : g;
    return (clamped(f, a.limit) + 1.0f) * (g / (1.0f + expf(-a.alpha * g)));
  }
  float active;
  if (a.activation == kFatRelu) {
    active = g <= a.alpha ? 0.0f : g;
  } else if (!kAll || a.activation == kSwish) {
    active = g / (1.0f + expf(-a.alpha * g));
  } else {
    active = a.activation == kSilu ? Silu::value(g) : a.activation == kGelu ? Gelu::value(g) : GeluTanh::value(g);
  }
  return T::round(active) * f;
}

// One vector of y, for the activations that share a kernel. Gates and factors may alternate.
template <class T>
DEVICE void forward_others(const ForwardArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  const i64 column = static_cast<i64>(at.column) * 16;
  const Halves<T> x = load_halves<T>(a, at.row, column);
  Vector y;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float g[T::kPerWord], f[T::kPerWord];
    x.unpack(k, g, f);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) g[e] = gated_element<T, false>(a, g[e], f[e]);
    y.word[k] = T::pack(g);
  }
  store(a.y + at.row * a.y_stride + column, y);
}

// A row at any address. Each thread computes one aligned vector of y, from the two vectors that its elements touch in
// the gates and in the factors.
template <class T, class Function>
DEVICE void gated_shifted(const ForwardArgs& a, const Place& of, const Shifted<T>& at, char* y) {
  const i64 last = quotient(a.units.total - 1, a.units.columns), column = static_cast<i64>(of.column) * 16 - at.lead;
  const auto load_from = [&](const char* rows, i64 stride) {
    return load_anywhere<T>(rows + of.row * stride + column, rows, rows + last * stride + a.row_bytes);
  };
  const Vector gate = load_from(a.gate, a.gate_stride);
  Vector factor = gate;
  if (a.factor != nullptr) factor = load_from(a.factor, a.factor_stride);
  at.store_to(y, of.column, gated_vector<T, Function>(a, gate, factor));
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
      const i64 column = static_cast<i64>(at.column) * a.step * T::kBytes;
      gate[j] = T::load(a.gate + at.row * a.gate_stride + column);
      factor[j] = a.factor != nullptr ? T::load(a.factor + at.row * a.factor_stride + column) : 1.0f;
      y[j] = a.y + at.row * a.y_stride + static_cast<i64>(at.column) * T::kBytes;
    }
  }
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    if (first + j * kThreads < a.units.total) T::store(y[j], gated_element<T, true>(a, gate[j], factor[j]));
  }
}

}  // namespace activations
}  // namespace precast

KERNEL(silu_and_mul_f32, ForwardArgs, 64, 2048, forward_vectors<Float32, Silu>)
KERNEL(gelu_and_mul_f32, ForwardArgs, 64, 1536, forward_vectors<Float32, Gelu>)
KERNEL(gelu_tanh_and_mul_f32, ForwardArgs, 64, 2048, forward_vectors<Float32, GeluTanh>)
KERNEL(gated_activation_f32_others, ForwardArgs, 64, 1536, forward_others<Float32>)
KERNEL(gated_activation_f32_any, ForwardArgs, 64, 1024, forward_any<Float32>)
KERNEL(gated_activation_f32_shifted, ForwardArgs, 64, 1024, forward_shifted<Float32>)

KERNEL(silu_and_mul_f16, ForwardArgs, 64, 2048, forward_vectors<Float16, Silu>)
KERNEL(gelu_and_mul_f16, ForwardArgs, 64, 1536, forward_vectors<Float16, Gelu>)
KERNEL(gelu_tanh_and_mul_f16, ForwardArgs, 64, 2048, forward_vectors<Float16, GeluTanh>)
KERNEL(gated_activation_f16_others, ForwardArgs, 64, 1536, forward_others<Float16>)
KERNEL(gated_activation_f16_any, ForwardArgs, 64, 1024, forward_any<Float16>)
KERNEL(gated_activation_f16_shifted, ForwardArgs, 64, 1024, forward_shifted<Float16>)

KERNEL(silu_and_mul_bf16, ForwardArgs, 64, 2048, forward_vectors<BFloat16, Silu>)
KERNEL(gelu_and_mul_bf16, ForwardArgs, 64, 1536, forward_vectors<BFloat16, Gelu>)
KERNEL(gelu_tanh_and_mul_bf16, ForwardArgs, 64, 2048, forward_vectors<BFloat16, GeluTanh>)
KERNEL(gated_activation_bf16_others, ForwardArgs, 64, 1536, forward_others<BFloat16>)
KERNEL(gated_activation_bf16_any, ForwardArgs, 64, 1024, forward_any<BFloat16>)
KERNEL(gated_activation_bf16_shifted, ForwardArgs, 64, 1024, forward_shifted<BFloat16>)
