// The gradients of the gated activations on the GPU, for y = activation(gate) * factor:
//
//   grad_gate = grad * factor * activation'(gate)      grad_factor = grad * activation(gate)
//
// Both are computed in one pass, which computes the activation again. Arithmetic is in float32, each result is rounded
// once, and the rounding of the forward counts as the identity.
#include "entries.h"
#include "gated.cuh"

namespace precast {
namespace activations {

struct Slope {
  float value;  // activation(x)
  float slope;  // its derivative
};

// Clamps x, so that the product is zero where x or a power of it would overflow and the other factor is already zero.
// The derivative is exact there. A NaN enters through the other terms.
DEVICE float bounded(float x) { return fminf(fmaxf(x, -64.0f), 64.0f); }

struct SiluSlope {
  static DEVICE Slope at(float x) {
    const float s = 1.0f / (1.0f + expf(-x));
    return {x * s, s * (1.0f + x * (1.0f - s))};
  }
};

struct GeluSlope {
  static DEVICE Slope at(float x) {
    const float below = 0.5f * (1.0f + erff(x * 0.70710678f));
    const float density = 0.39894228f * expf(-0.5f * x * x);
    return {x * below, below + x * density};
  }
};

struct GeluTanhSlope {
  static DEVICE Slope at(float x) {
    const float square = x * x;
    const float t = tanhf(0.79788456f * (x + 0.044715f * (square * x)));
    const float part = 0.5f * (1.0f + t), c = bounded(x);
    const float inner = 0.79788456f * (1.0f + 3.0f * 0.044715f * (c * c));
    return {x * part, part + 0.5f * x * (1.0f - t * t) * inner};
  }
};

// Computes and stores the gradients of one element, from element(grad, gate, factor).
template <class T, class Body>
DEVICE void single_gradient(const BackwardArgs& a, i64 row, i64 column, const Body& element) {
  const Pair x = load_pair<T, true>(a, row, column);
  const Pair grads = element(T::load(a.grad + row * a.grad_stride + column), x.gate, x.factor);
  const i64 result = row * a.grad_x_stride + column * a.step;
  T::store(a.grad_gate + result, grads.gate);
  if (a.factor != nullptr) T::store(a.grad_factor + result, grads.factor);
}

// The last unit of a launch that is not a whole vector, in the one thread that has it.
template <class T, class Body>
DEVICE void backward_tail(const BackwardArgs& a, const Place& at, const Body& element) {
#pragma unroll 1
  for (int i = 0; i < a.tail; ++i) {
    single_gradient<T>(a, at.row, static_cast<i64>(at.column) * 16 + i * T::kBytes, element);
  }
}

// One vector of 16 bytes of grad, of gates and of factors.
template <class T, class Function>
DEVICE void backward_vectors(const BackwardArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  if (is_tail(index, a.units, a.tail)) {
    return backward_tail<T>(a, at, [](float g, float x, float f) -> Pair {
      const Slope here = Function::at(x);
      return {g * f * here.slope, g * here.value};
    });
  }
  const i64 column = static_cast<i64>(at.column) * 16;
  Halves x = load_halves<T, false>(a, at.row, column);
  const Vector grad = load_constant(a.grad + at.row * a.grad_stride + column);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float gate[T::kPerWord], factor[T::kPerWord], g[T::kPerWord];
    T::unpack(x.gate.word[k], gate);
    T::unpack(x.factor.word[k], factor);
    T::unpack(grad.word[k], g);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) {
      const Slope here = Function::at(gate[e]);
      gate[e] = g[e] * factor[e] * here.slope;
      factor[e] = g[e] * here.value;
    }
    x.gate.word[k] = T::pack(gate);
    x.factor.word[k] = T::pack(factor);
  }
  const i64 result = at.row * a.grad_x_stride + column;
  store(a.grad_gate + result, x.gate);
  store(a.grad_factor + result, x.factor);
}

DEVICE Slope slope_at(int activation, float x) {
  return activation == kSilu ? SiluSlope::at(x) : activation == kGelu ? GeluSlope::at(x) : GeluTanhSlope::at(x);
}

// The slope of x / (1 + exp(-z)), where z grows by `rate` for each unit of x. What grows with x is bounded, because
// beyond it the sigmoid or its distance from 1 is zero; a NaN is in the sigmoid as well.
DEVICE float sigmoid_slope(float x, float sigmoid, float rate) {
  const float steep = fminf(fmaxf(rate * x, -300.0f), 300.0f);
  return sigmoid * (1.0f + steep * (1.0f - sigmoid));
}

template <class T>
DEVICE float alone_slope(const BackwardArgs& a, float x) {
  if (a.activation == kSwish) return sigmoid_slope(x, sigmoid_of<T>(a.alpha * x), a.alpha);
  return sigmoid_slope(x, sigmoid_of<T>(twice_inner(x)), fmaf(x * x, 0.21406443f, 1.5957691f));
}

// The gradients of one element for the activations that share a kernel.
template <class T>
DEVICE Pair other_gradients(const BackwardArgs& a, float g, float x, float f) {
  if (a.activation == kFatRelu) return x <= a.alpha ? Pair{g * f * 0.0f, g * 0.0f} : Pair{g * f, g * x};
  if (a.activation != kSwigluOai) return {g * alone_slope<T>(a, x), 0.0f};
  const bool cut = x > a.limit;
  const float c = cut ? a.limit : x, s = sigmoid_of<T>(a.alpha * c), inside = clamped(f, a.limit);
  const float slope = cut ? 0.0f : sigmoid_slope(c, s, a.alpha);
  return {g * (inside + 1.0f) * slope, inside != f ? 0.0f : g * (c * s)};
}

// Stores the gradients for one vector of grad.
template <class T>
DEVICE void store_halves(const BackwardArgs& a, i64 row, i64 column, const Halves& grads) {
  if (a.step == 2) {
    const Halves both = joined<T>(grads);
    char* const result = a.grad_gate + row * a.grad_x_stride + column * 2;
    store(result, both.gate);
    store(result + 16, both.factor);
    return;
  }
  store(a.grad_gate + row * a.grad_x_stride + column, grads.gate);
  store(a.grad_factor + row * a.grad_x_stride + column, grads.factor);
}

// The gradients of a vector, from element(grad, gate, factor), two or one elements at a time.
template <class T, class Body>
DEVICE Halves gradients_of(Halves x, Vector grad, const Body& element) {
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    float gate[T::kPerWord], factor[T::kPerWord], g[T::kPerWord];
    T::unpack(x.gate.word[0], gate);
    T::unpack(x.factor.word[0], factor);
    T::unpack(grad.word[0], g);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) {
      const Pair grads = element(g[e], gate[e], factor[e]);
      gate[e] = grads.gate;
      factor[e] = grads.factor;
    }
    append(x.gate, T::pack(gate));
    append(x.factor, T::pack(factor));
    append(grad, 0);
  }
  return x;
}

template <class T>
DEVICE void other_vectors(const BackwardArgs& a, i64 row, i64 column) {
  Halves x = load_halves<T, true>(a, row, column);
  const Vector grad = load_constant(a.grad + row * a.grad_stride + column);
  if (a.factor == nullptr) {
    const auto slope = [&](int, float g, float v) { return g * alone_slope<T>(a, v); };
    return store(a.grad_gate + row * a.grad_x_stride + column, combine<T>(grad, x.gate, slope));
  }
  x = gradients_of<T>(x, grad, [&](float g, float v, float f) { return other_gradients<T>(a, g, v, f); });
  store_halves<T>(a, row, column, x);
}

// One vector or one element of grad, for the activations that share a kernel. Gates and factors may alternate.
template <class T>
DEVICE void backward_others(const BackwardArgs& a) {
  const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  const auto element = [&](float g, float x, float f) { return other_gradients<T>(a, g, x, f); };
  if (a.form == kSingle) {
    return single_gradient<T>(a, at.row, static_cast<i64>(at.column) * T::kBytes, element);
  }
  if (is_tail(index, a.units, a.tail)) return backward_tail<T>(a, at, element);
  other_vectors<T>(a, at.row, static_cast<i64>(at.column) * 16);
}

// A row at any address. Each thread computes one aligned vector of the gates' gradients. Those of factors begin at
// another remainder of 16 bytes, so a thread stores the aligned vector that begins in its own and ends in that of the
// next lane; the last lane of a warp only lends its vector.
template <class T>
DEVICE void backward_shifted(const BackwardArgs& a) {
  const u32 lane = threadIdx.x % 32, index = blockIdx.x * kLentVectors + threadIdx.x / 32 * 31 + lane;
  const bool exists = index < a.units.total;
  const Place of = place_of(exists ? index : a.units.total - 1, a.units);
  char* const gates = a.grad_gate + of.row * a.grad_x_stride;
  const Shifted<T> at(gates, a.row_bytes);
  Halves x = {};
  if (exists && of.column < at.count) {
    Vector all[3];
    load_anywhere<T, 3>(
        {{a.grad + of.row * a.grad_stride, a.grad, a.grad_end}, gate_stream(a, of.row), factor_stream(a, of.row)},
        static_cast<i64>(of.column) * 16 - at.lead, a.row_bytes, all);
    x = gradients_of<T>({all[1], all[2]}, all[0], [&](float g, float v, float f) -> Pair {
      if (a.activation > kGeluTanh) return other_gradients<T>(a, g, v, f);
      const Slope here = slope_at(a.activation, v);
      return {g * f * here.slope, g * here.value};
    });
    if (lane < 31) at.store_to(gates, of.column, x.gate);
  }
  if (a.factor == nullptr) return;
  Vector next;
#pragma unroll
  for (int k = 0; k < 4; ++k) next.word[k] = __shfl_down_sync(0xffffffffu, x.factor.word[k], 1);
  if (!exists || of.column >= at.count || lane == 31) return;
  char* const factors = a.grad_factor + of.row * a.grad_x_stride;
  const Shifted<T> to(factors, a.row_bytes);
  const bool later = at.lead < to.lead;
  const u32 from = (at.lead - to.lead) & 15, column = of.column + (later ? 1 : 0);
  if (column < to.count) to.store_to(factors, column, shifted(x.factor, next, from));
  if (later && of.column == 0) to.store_to(factors, 0, shifted(Vector{}, x.factor, from));
}

// Any row, one element at a time.
template <class T>
DEVICE void backward_any(const BackwardArgs& a) {
  const u32 first = blockIdx.x * (kThreads * kElements) + threadIdx.x;
  float gate[kElements], factor[kElements], grad[kElements];
  i64 result[kElements];
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    const u32 index = first + j * kThreads;
    if (index < a.units.total) {
      const Place at = place_of(index, a.units);
      const i64 column = static_cast<i64>(at.column) * T::kBytes;
      const Pair x = load_pair<T, false>(a, at.row, column);
      gate[j] = x.gate;
      factor[j] = x.factor;
      grad[j] = T::load(a.grad + at.row * a.grad_stride + column);
      result[j] = at.row * a.grad_x_stride + column;
    }
  }
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    if (first + j * kThreads < a.units.total) {
      const Slope here = slope_at(a.activation, gate[j]);
      T::store(a.grad_gate + result[j], grad[j] * factor[j] * here.slope);
      T::store(a.grad_factor + result[j], grad[j] * here.value);
    }
  }
}

ACTIVATIONS_BACKWARD_KERNELS(KERNEL)

}  // namespace activations
}  // namespace precast
