// Gated activations on the GPU: y = round(round(activation(gate)) * factor). See host.cpp for the choice of kernels.
//
// The activation is rounded to the dtype before the product, and its formula is that of torch's own kernels. So the
// result is bitwise that of torch's two ops in sequence. Arithmetic is in float32. swigluoai is rounded once.
#include "../common/early.cuh"
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

// The activation of a vector, times the factor.
template <class T, class Function>
DEVICE Vector gated_vector(const Halves& x) {
  const Vector active = combine<T>(x.gate, x.gate, [](int, float g, float) { return Function::value(g); });
  return combine<T>(active, x.factor, [](int, float s, float f) { return s * f; });
}

// One vector of 16 bytes of gates and one of factors.
template <class T, class Function>
DEVICE void forward_vectors(const ForwardArgs& a) {
  begin_launch(a.early);
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  const i64 column = static_cast<i64>(at.column) * 16;
  store(a.y + at.row * a.y_stride + column, gated_vector<T, Function>(load_halves<T, false>(a, at.row, column)));
}

DEVICE float activate(int activation, float x) {
  return activation == kSilu ? Silu::value(x) : activation == kGelu ? Gelu::value(x) : GeluTanh::value(x);
}

// An element of the result for the activations that share a kernel. A path for each of them took more code.
template <class T>
DEVICE float other_element(const ForwardArgs& a, float g, float f) {
  const bool clamps = a.activation == kSwigluOai;
  const float c = g > a.limit ? a.limit : g;
  const float swish = c / (1.0f + expf(-(a.activation == kGeluNew ? twice_inner(c) : a.alpha * c)));
  const float active = a.activation == kFatRelu ? (g <= a.alpha ? 0.0f : g) : swish;
  return (clamps ? active : T::round(active)) * (clamps ? clamped(f, a.limit) + 1.0f : f);
}

// One vector or one element of y, for the activations that share a kernel. Gates and factors may alternate.
template <class T>
DEVICE void forward_others(const ForwardArgs& a) {
  begin_launch(a.early);
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  const i64 column = static_cast<i64>(at.column) * (a.single ? T::kBytes : 16);
  char* const y = a.y + at.row * a.y_stride + column;
  if (a.single) {
    const Pair x = load_pair<T, true>(a, at.row, column);
    T::store(y, other_element<T>(a, x.gate, x.factor));
    return;
  }
  Halves x = load_halves<T, true>(a, at.row, column);
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    float g[T::kPerWord], f[T::kPerWord];
    T::unpack(x.gate.word[0], g);
    T::unpack(x.factor.word[0], f);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) g[e] = other_element<T>(a, g[e], f[e]);
    append(x.gate, T::pack(g));
    append(x.factor, 0);
  }
  store(y, x.gate);
}

// A row at any address. Each thread computes one aligned vector of y, from the two vectors that its elements touch in
// the gates and in the factors.
template <class T, class Function>
DEVICE void gated_shifted(const ForwardArgs& a, const Place& of, const Shifted<T>& at, char* y) {
  const i64 last = quotient(a.units.total - 1, a.units.columns), column = static_cast<i64>(of.column) * 16 - at.lead;
  const auto load_from = [&](const char* rows, i64 stride) {
    return load_anywhere<T>(rows + of.row * stride + column, rows, rows + last * stride + a.row_bytes);
  };
  const Halves x = {load_from(a.gate, a.gate_stride), load_from(a.factor, a.factor_stride)};
  at.store_to(y, of.column, gated_vector<T, Function>(x));
}

template <class T>
DEVICE void forward_shifted(const ForwardArgs& a) {
  begin_launch(a.early);
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
  begin_launch(a.early);
  const u32 first = blockIdx.x * (kThreads * kElements) + threadIdx.x;
  float gate[kElements], factor[kElements];
  char* y[kElements];
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    const u32 index = first + j * kThreads;
    if (index < a.units.total) {
      const Place at = place_of(index, a.units);
      const Pair x = load_pair<T, false>(a, at.row, static_cast<i64>(at.column) * T::kBytes);
      gate[j] = x.gate;
      factor[j] = x.factor;
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
