// The gradients of the gated activations on the GPU, for y = activation(gate) * factor:
//
//   grad_gate = grad * factor * activation'(gate)      grad_factor = grad * activation(gate)
//
// Both are computed in one pass, which computes the activation again. Arithmetic is in float32, each result is rounded
// once, and the rounding of the forward counts as the identity.
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

// One vector of 16 bytes of grad, of gates and of factors.
template <class T, class Function>
DEVICE void backward_vectors(const BackwardArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  const i64 column = static_cast<i64>(at.column) * 16;
  const bool alone = a.factor == nullptr;
  const Vector gate = load_constant(a.gate + at.row * a.gate_stride + column);
  Vector factor = gate;
  if (!alone) factor = load_constant(a.factor + at.row * a.factor_stride + column);
  const Vector grad = load_constant(a.grad + at.row * a.grad_stride + column);
  Vector grad_gate, grad_factor;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float x[T::kPerWord], f[T::kPerWord], g[T::kPerWord];
    T::unpack(gate.word[k], x);
    T::unpack(factor.word[k], f);
    T::unpack(grad.word[k], g);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) {
      const Slope here = Function::at(x[e]);
      x[e] = (alone ? g[e] : g[e] * f[e]) * here.slope;
      f[e] = g[e] * here.value;
    }
    grad_gate.word[k] = T::pack(x);
    grad_factor.word[k] = T::pack(f);
  }
  const i64 result = at.row * a.grad_x_stride + column;
  store(a.grad_gate + result, grad_gate);
  if (!alone) store(a.grad_factor + result, grad_factor);
}

DEVICE Slope swish_slope(float alpha, float x) {
  const float s = 1.0f / (1.0f + expf(-alpha * x));
  return {x * s, s * (1.0f + alpha * x * (1.0f - s))};
}

struct Gradients {
  float gate, factor;
};

// The gradients of one element. Leave kAll unset if the activation has no kernel of its own.
template <bool kAll>
DEVICE Gradients gradients_of(const BackwardArgs& a, float g, float x, float f) {
  if (a.activation == kSwigluOai) {
    const Slope here = swish_slope(a.alpha, x > a.limit ? a.limit : x);
    const float factor = clamped(f, a.limit);
    return {x > a.limit ? 0.0f : g * (factor + 1.0f) * here.slope, factor != f ? 0.0f : g * here.value};
  }
  Slope here;
  if (a.activation == kFatRelu) {
    here = x <= a.alpha ? Slope{0.0f, 0.0f} : Slope{x, 1.0f};
  } else if (!kAll || a.activation == kSwish) {
    here = swish_slope(a.alpha, x);
  } else {
    here = a.activation == kSilu   ? SiluSlope::at(x)
           : a.activation == kGelu ? GeluSlope::at(x)
                                   : GeluTanhSlope::at(x);
  }
  return {g * f * here.slope, g * here.value};
}

// One vector of grad, for the activations that share a kernel. Gates and factors may alternate.
template <class T>
DEVICE void backward_others(const BackwardArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  const i64 column = static_cast<i64>(at.column) * 16;
  const Halves<T> x = load_halves<T>(a, at.row, column);
  const Vector grad = load_constant(a.grad + at.row * a.grad_stride + column);
  Halves<T> result = x;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float gate[T::kPerWord], factor[T::kPerWord], g[T::kPerWord];
    x.unpack(k, gate, factor);
    T::unpack(grad.word[k], g);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) {
      const Gradients of = gradients_of<false>(a, g[e], gate[e], factor[e]);
      gate[e] = of.gate;
      factor[e] = of.factor;
    }
    result.pack(k, gate, factor);
  }
  char* const grad_gate = a.grad_gate + at.row * a.grad_x_stride + column * a.step;
  store(grad_gate, result.first);
  if (x.alternating) {
    store(grad_gate + 16, result.second);
  } else if (!x.alone) {
    store(a.grad_factor + at.row * a.grad_x_stride + column, result.second);
  }
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
      const i64 column = static_cast<i64>(at.column) * T::kBytes, there = column * a.step;
      gate[j] = T::load(a.gate + at.row * a.gate_stride + there);
      factor[j] = a.factor != nullptr ? T::load(a.factor + at.row * a.factor_stride + there) : 1.0f;
      grad[j] = T::load(a.grad + at.row * a.grad_stride + column);
      result[j] = at.row * a.grad_x_stride + there;
    }
  }
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    if (first + j * kThreads < a.units.total) {
      const Gradients of = gradients_of<true>(a, grad[j], gate[j], factor[j]);
      T::store(a.grad_gate + result[j], of.gate);
      if (a.factor != nullptr) T::store(a.grad_factor + result[j], of.factor);
    }
  }
}

}  // namespace activations
}  // namespace precast

KERNEL(silu_backward_f32, BackwardArgs, 64, 1536, backward_vectors<Float32, SiluSlope>)
KERNEL(gelu_backward_f32, BackwardArgs, 64, 1280, backward_vectors<Float32, GeluSlope>)
KERNEL(gelu_tanh_backward_f32, BackwardArgs, 64, 1536, backward_vectors<Float32, GeluTanhSlope>)
KERNEL(gated_backward_f32_others, BackwardArgs, 64, 1280, backward_others<Float32>)
KERNEL(gated_backward_f32_any, BackwardArgs, 64, 1024, backward_any<Float32>)

KERNEL(silu_backward_f16, BackwardArgs, 64, 1536, backward_vectors<Float16, SiluSlope>)
KERNEL(gelu_backward_f16, BackwardArgs, 64, 1280, backward_vectors<Float16, GeluSlope>)
KERNEL(gelu_tanh_backward_f16, BackwardArgs, 64, 1536, backward_vectors<Float16, GeluTanhSlope>)
KERNEL(gated_backward_f16_others, BackwardArgs, 64, 1280, backward_others<Float16>)
KERNEL(gated_backward_f16_any, BackwardArgs, 64, 1024, backward_any<Float16>)

KERNEL(silu_backward_bf16, BackwardArgs, 64, 1536, backward_vectors<BFloat16, SiluSlope>)
KERNEL(gelu_backward_bf16, BackwardArgs, 64, 1280, backward_vectors<BFloat16, GeluSlope>)
KERNEL(gelu_tanh_backward_bf16, BackwardArgs, 64, 1536, backward_vectors<BFloat16, GeluTanhSlope>)
KERNEL(gated_backward_bf16_others, BackwardArgs, 64, 1280, backward_others<BFloat16>)
KERNEL(gated_backward_bf16_any, BackwardArgs, 64, 1024, backward_any<BFloat16>)
