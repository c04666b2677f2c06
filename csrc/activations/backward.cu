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

// The gradients of one element for the activations that share a kernel. A path for each of them took more code.
DEVICE Pair other_gradients(const BackwardArgs& a, float g, float x, float f) {
  const bool gelu = a.activation == kGeluNew, relu = a.activation == kFatRelu;
  const float c = x > a.limit ? a.limit : x;
  const float s = 1.0f / (1.0f + expf(-(gelu ? twice_inner(c) : a.alpha * c)));
  // c times the exponent's derivative. Bounded, because beyond it s or 1 - s is zero; a NaN is in s as well.
  const float rate = gelu ? 1.5957691f * (1.0f + 0.134145f * (c * c)) : a.alpha;
  const float steep = fminf(fmaxf(rate * c, -300.0f), 300.0f);
  const bool cut = relu ? x <= a.alpha : x > a.limit;
  const float value = !relu ? c * s : cut ? 0.0f : x;
  const float slope = cut ? 0.0f : relu ? 1.0f : s * (1.0f + steep * (1.0f - s));
  const bool clamps = a.activation == kSwigluOai;
  const float inside = clamps ? clamped(f, a.limit) : f;
  return {g * (clamps ? inside + 1.0f : inside) * slope, clamps && inside != f ? 0.0f : g * value};
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
  if (a.factor != nullptr) store(a.grad_factor + row * a.grad_x_stride + column, grads.factor);
}

template <class T>
DEVICE void other_vectors(const BackwardArgs& a, i64 row, i64 column) {
  Halves x = load_halves<T, true>(a, row, column);
  Vector grad = load_constant(a.grad + row * a.grad_stride + column);
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    float gate[T::kPerWord], factor[T::kPerWord], g[T::kPerWord];
    T::unpack(x.gate.word[0], gate);
    T::unpack(x.factor.word[0], factor);
    T::unpack(grad.word[0], g);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) {
      const Pair grads = other_gradients(a, g[e], gate[e], factor[e]);
      gate[e] = grads.gate;
      factor[e] = grads.factor;
    }
    append(x.gate, T::pack(gate));
    append(x.factor, T::pack(factor));
    append(grad, 0);
  }
  store_halves<T>(a, row, column, x);
}

// One vector or one element of grad, for the activations that share a kernel. Gates and factors may alternate.
template <class T>
DEVICE void backward_others(const BackwardArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.units.total) return;
  const Place at = place_of(index, a.units);
  if (!a.single) return other_vectors<T>(a, at.row, static_cast<i64>(at.column) * 16);
  const i64 column = static_cast<i64>(at.column) * T::kBytes;
  const Pair x = load_pair<T, true>(a, at.row, column);
  const Pair grads = other_gradients(a, T::load(a.grad + at.row * a.grad_stride + column), x.gate, x.factor);
  const i64 result = at.row * a.grad_x_stride + column * a.step;
  T::store(a.grad_gate + result, grads.gate);
  if (a.factor != nullptr) T::store(a.grad_factor + result, grads.factor);
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
