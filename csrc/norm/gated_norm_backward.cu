// The gradients of RMS norms with a gate on the GPU. With n, r and w as in the forward, h = grad w (times the gate, if
// it comes last) and m = scale sum(h n r):
//
//   grad_n = r (h - n r m)    grad_weight = sum over tokens of grad n r (times the gate, if it comes last)
//
// and those of x and the gate follow. The rounding of the forward counts as the identity. Sums have a fixed order.
#include "../gpu/walk.cuh"
#include "entries.h"
#include "gated_norm_row.cuh"

namespace precast {
namespace gated_norm {

// One element: n, h, and what it takes to finish.
struct Element {
  float x, n, h, with_weight, with_gate;  // grad times the weight, and times the gate
  Gate gate;
};

// The function of a gate, for gradients: numbers of 16 bits need no more digits than these instructions have.
template <class T>
DEVICE Gate gate_of(float g, int sigmoid) {
  if constexpr (T::kBytes == 4) return gate_at(g, sigmoid);
  const float s = sigmoid_of<T>(g);
  if (sigmoid != 0) return {s, s * (1.0f - s)};
  return {g * s, s * (1.0f + fminf(fmaxf(g, -300.0f), 300.0f) * (1.0f - s))};
}

template <class T>
DEVICE Element element_of(const ForwardArgs& a, float x, float g, float weight, float grad) {
  Element one = {x, x, grad * weight, grad * weight, grad, {1.0f, 0.0f}};
  if (a.gate == nullptr) return one;
  one.gate = gate_of<T>(g, a.sigmoid);
  if (a.gate_first != 0) {
    one.n *= one.gate.value;
  } else {
    one.h *= one.gate.value;
    one.with_gate *= one.gate.value;
  }
  return one;
}

struct Gradients {
  float x, gate, weight;
};

DEVICE Gradients gradients_of(const ForwardArgs& a, const Element& one, float r, float mean) {
  const float normal = one.n * r, of_n = r * (one.h - normal * mean);
  if (a.gate_first != 0) return {of_n * one.gate.value, of_n * one.x * one.gate.slope, one.with_gate * normal};
  return {of_n, one.with_weight * normal * one.gate.slope, one.with_gate * normal};
}

// Calls body(word, place in it, element) for each element of a vector.
template <class T, class Body>
DEVICE void for_vector(const ForwardArgs& a, const Vector& x, const Vector& gate, const Columns<T, true>& weight,
                       const Vector& grad, const Body& body) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float p[T::kPerWord], q[T::kPerWord], s[T::kPerWord], t[T::kPerWord];
    T::unpack(x.word[k], p);
    T::unpack(gate.word[k], q);
    T::unpack(grad.word[k], s);
    weight.unpack(k, t);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) body(k, e, element_of<T>(a, p[e], q[e], t[e], s[e]));
  }
}

// A row in registers, a vector per thread.
template <class T>
DEVICE void backward_rows(const BackwardArgs& args) {
  alignas(16) __shared__ float shared[2][3 * 32];
  const ForwardArgs& a = args.forward;
  next_launch_may_start();
  const u32 worker = blockIdx.x * blockDim.y + threadIdx.y, turns = (a.rows + args.workers - 1) / args.workers;
  const bool taken = threadIdx.x < a.vectors && worker < args.workers;
  const i64 bytes = a.hidden * T::kBytes;
  const u32 group = Row(a, worker).group;
  Columns<T, true> w;
  if (taken) w.load_or_fill(a.weight, static_cast<i64>(group) * a.vectors + threadIdx.x, a.wide, 1.0f);
  float part[T::kPerVector];
#pragma unroll
  for (int e = 0; e < T::kPerVector; ++e) part[e] = 0.0f;
  // The next row is on its way while this one is summed.
  Vector next_x, next_g, next_grad;
  const auto fetch = [&](u32 turn) {
    next_x = next_g = next_grad = Vector{{0, 0, 0, 0}};
    const u32 row = worker + turn * args.workers;
    if (!taken || turn >= turns || row >= a.rows) return;
    const Row at(a, row);
    next_x = load(at.at(a.x, a.x_stride, bytes) + threadIdx.x * 16);
    next_grad = load(at.at(args.grad, args.grad_stride, bytes) + threadIdx.x * 16);
    if (a.gate != nullptr) next_g = load(at.at(a.gate, a.gate_stride, bytes) + threadIdx.x * 16);
  };
  fetch(0);
#pragma unroll 1
  for (u32 turn = 0; turn < turns; ++turn) {
    const u32 row = worker + turn * args.workers;
    const bool here = taken && row < a.rows;
    const Vector x = next_x, g = next_g, grad = next_grad;
    fetch(turn + 1);
    float sums[2] = {0.0f, 0.0f};
    if (here) {
      for_vector<T>(a, x, g, w, grad, [&](int, int, const Element& one) {
        sums[0] = fmaf(one.n, one.n, sums[0]);
        sums[1] = fmaf(one.h, one.n, sums[1]);
      });
    }
    row_sums(sums, shared[turn & 1]);
    if (!here) continue;
    const float r = rsqrtf(sums[0] * a.scale + a.eps), mean = sums[1] * r * a.scale;
    Vector of_x, of_gate;
    float p[T::kPerWord], q[T::kPerWord];
    for_vector<T>(a, x, g, w, grad,
                  [&](int k, int e, const Element& one) {  // computed again, which takes fewer registers
                    const Gradients found = gradients_of(a, one, r, mean);
                    p[e] = found.x;
                    q[e] = found.gate;
                    part[k * T::kPerWord + e] += found.weight;
                    if (e + 1 < T::kPerWord) return;
                    of_x.word[k] = T::pack(p);
                    of_gate.word[k] = T::pack(q);
                  });
    store(a.y + row * bytes + threadIdx.x * 16, of_x);
    if (a.gate != nullptr) store(args.grad_gate + row * bytes + threadIdx.x * 16, of_gate);
  }
  if (!taken || args.parts == nullptr) return;
  float4* const line = reinterpret_cast<float4*>(args.parts + worker * a.hidden) + threadIdx.x * (T::kPerVector / 4);
#pragma unroll
  for (int q = 0; q < T::kPerVector / 4; ++q) {
    line[q] = float4{part[q * 4], part[q * 4 + 1], part[q * 4 + 2], part[q * 4 + 3]};
  }
}

// Any row, one element at a time and read twice. The worker's slice of `parts` is the accumulator.
template <class T>
DEVICE void backward_any(const BackwardArgs& args) {
  alignas(16) __shared__ float shared[2][3 * 32];
  const ForwardArgs& a = args.forward;
  next_launch_may_start();
  const u32 worker = blockIdx.x * blockDim.y + threadIdx.y;
  if (worker >= args.workers) return;
  const i64 bytes = a.hidden * T::kBytes;
  float* const line = args.parts + worker * a.hidden;
  u32 parity = 0;
  for (u32 row = worker; row < a.rows || row == worker; row += args.workers, parity ^= 1) {
    if (row >= a.rows) {  // a worker without rows
      for (i64 i = threadIdx.x; args.parts != nullptr && i < a.hidden; i += blockDim.x) line[i] = 0.0f;
      return;
    }
    const Row at(a, row);
    const char *x = at.at(a.x, a.x_stride, bytes), *gate = at.at(a.gate, a.gate_stride, bytes);
    const char* grad = at.at(args.grad, args.grad_stride, bytes);
    const auto element = [&](i64 i) {
      const float w = a.weight != nullptr ? column<T>(a.weight, at.group * a.hidden + i, a.wide) : 1.0f;
      const float g = a.gate != nullptr ? T::load(gate + i * T::kBytes) : 0.0f;
      return element_of<T>(a, T::load(x + i * T::kBytes), g, w, T::load(grad + i * T::kBytes));
    };
    float sums[2] = {0.0f, 0.0f};
    for (i64 i = threadIdx.x; i < a.hidden; i += blockDim.x) {
      const Element one = element(i);
      sums[0] = fmaf(one.n, one.n, sums[0]);
      sums[1] = fmaf(one.h, one.n, sums[1]);
    }
    row_sums(sums, shared[parity]);
    const float r = rsqrtf(sums[0] * a.scale + a.eps), mean = sums[1] * r * a.scale;
    for (i64 i = threadIdx.x; i < a.hidden; i += blockDim.x) {
      const Gradients found = gradients_of(a, element(i), r, mean);
      T::store(a.y + row * bytes + i * T::kBytes, found.x);
      if (a.gate != nullptr) T::store(args.grad_gate + row * bytes + i * T::kBytes, found.gate);
      if (args.parts != nullptr) line[i] = row == worker ? found.weight : line[i] + found.weight;
    }
  }
}

DEVICE void gated_weight_columns(const ColumnArgs& a) {
  add_columns(a.parts, a.hidden, a.lines, a.grad_weight, a.dtype);
}

RMS_NORM_GATED_BACKWARD_KERNELS(KERNEL)

}  // namespace gated_norm
}  // namespace precast
