// Gated activations on the GPU: y = round(round(activation(gate)) * factor). See host.cpp for the choice of kernels.
//
// The activation is rounded to the dtype before the product, and its formula is that of torch's own kernels. So the
// result is bitwise that of torch's two ops in sequence. Arithmetic is in float32. swigluoai is rounded once.
#include "../gpu/early.cuh"
#include "entries.h"
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

DEVICE float activate(int activation, float x) {
  return activation == kSilu ? Silu::value(x) : activation == kGelu ? Gelu::value(x) : GeluTanh::value(x);
}

// The last unit of a launch that is not a whole vector, in the one thread that has it.
template <class T, class Body>
DEVICE void forward_tail(const ForwardArgs& a, const Place& at, const Body& element) {
#pragma unroll 1
  for (int i = 0; i < a.tail; ++i) {
    const i64 column = static_cast<i64>(at.column) * 16 + i * T::kBytes;
    const Pair x = load_pair<T, true>(a, at.row, column);
    T::store(a.y + at.row * a.y_stride + column, element(x.gate, x.factor));
  }
}

// One vector of 16 bytes of gates and one of factors.
template <class T, class Function>
DEVICE void forward_vectors(const ForwardArgs& a) {
  begin_launch(a.early);
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  if (is_tail(index, a.units, a.tail)) {
    return forward_tail<T>(a, at, [](float g, float f) { return T::round(Function::value(g)) * f; });
  }
  const i64 column = static_cast<i64>(at.column) * 16;
  store(a.y + at.row * a.y_stride + column, gated_vector<T, Function>(load_halves<T, false>(a, at.row, column)));
}

// The activations that share kernels. The last two have no factors.
template <class T>
DEVICE float fat_relu(const ForwardArgs& a, float g, float f) {
  return T::round(g <= a.alpha ? 0.0f : g) * f;
}

template <class T>
DEVICE float swiglu_oai(const ForwardArgs& a, float g, float f) {
  const float c = g > a.limit ? a.limit : g;
  return times_sigmoid<T>(c, a.alpha * c) * (clamped(f, a.limit) + 1.0f);
}

template <class T>
DEVICE float other_element(const ForwardArgs& a, float g, float f) {
  if (a.activation == kFatRelu) return fat_relu<T>(a, g, f);
  if (a.activation == kSwigluOai) return swiglu_oai<T>(a, g, f);
  return times_sigmoid<T>(g, a.activation == kGeluNew ? twice_inner(g) : a.alpha * g);
}

// One decision for a vector, and then as many independent elements as it has.
template <class T>
DEVICE Vector other_vector(const ForwardArgs& a, const Halves& x) {
  if (a.activation == kFatRelu) {
    return combine<T>(x.gate, x.factor, [&](int, float g, float f) { return fat_relu<T>(a, g, f); });
  }
  if (a.activation == kSwigluOai) {
    return combine<T>(x.gate, x.factor, [&](int, float g, float f) { return swiglu_oai<T>(a, g, f); });
  }
  if (a.activation == kGeluNew) {
    return combine<T>(x.gate, x.gate, [](int, float g, float) { return times_sigmoid<T>(g, twice_inner(g)); });
  }
  return combine<T>(x.gate, x.gate, [&](int, float g, float) { return times_sigmoid<T>(g, a.alpha * g); });
}

// One vector or one element of y, for the activations that share a kernel. Gates and factors may alternate.
template <class T>
DEVICE void forward_others(const ForwardArgs& a) {
  begin_launch(a.early);
  const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  if (a.form == kSingle) {
    const i64 column = static_cast<i64>(at.column) * T::kBytes;
    const Pair x = load_pair<T, true>(a, at.row, column);
    return T::store(a.y + at.row * a.y_stride + column, other_element<T>(a, x.gate, x.factor));
  }
  if (is_tail(index, a.units, a.tail)) {
    return forward_tail<T>(a, at, [&](float g, float f) { return other_element<T>(a, g, f); });
  }
  const i64 column = static_cast<i64>(at.column) * 16;
  store(a.y + at.row * a.y_stride + column, other_vector<T>(a, load_halves<T, true>(a, at.row, column)));
}

// A row at any address. Each thread computes one aligned vector of y.
template <class T>
DEVICE void forward_shifted(const ForwardArgs& a) {
  begin_launch(a.early);
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place of = place_of(index, a.units);
  char* y = a.y + of.row * a.y_stride;
  const Shifted<T> at(y, a.row_bytes);
  if (of.column >= at.count) return;
  Vector both[2];
  load_anywhere<T, 2>({gate_stream(a, of.row), factor_stream(a, of.row)}, static_cast<i64>(of.column) * 16 - at.lead,
                      a.row_bytes, both);
  const Halves x = {both[0], both[1]};
  Vector result;
  if (a.activation == kSilu) {
    result = gated_vector<T, Silu>(x);
  } else if (a.activation == kGelu) {
    result = gated_vector<T, Gelu>(x);
  } else if (a.activation == kGeluTanh) {
    result = gated_vector<T, GeluTanh>(x);
  } else {
    result = other_vector<T>(a, x);
  }
  at.store_to(y, of.column, result);
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

ACTIVATIONS_KERNELS(KERNEL)

}  // namespace activations
}  // namespace precast
