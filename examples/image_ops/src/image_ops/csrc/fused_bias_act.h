// y = scale * f(x + bias), and its derivatives.
//
// With u = x + bias: grad 0 gives scale * f(u); grad 1 gives scale * f'(u0) * u, the derivative at the u0 whose f is
// `refer`, in the direction u; grad 2 gives zero, as f has no curvature. Only the sign of `refer` is read, so it may be
// the output of the forward pass wherever f and scale keep signs.
#pragma once

#include <cstdint>

#include "scalar.h"

namespace image_ops {

enum Activation : int { kLinear = 1, kLeakyRelu = 3 };

struct BiasAct {
  const void* input;
  const void* bias;   // one for each channel, or null
  const void* refer;  // as large as the input, or null for grad 0
  void* out;
  int64_t elements, channels, inner;  // the input is (batch, channels, inner), contiguous
  int act, grad;
  double alpha, scale;
};

// One element. `at` decides on which side of zero the slope is taken.
template <typename Acc>
IMAGE_OPS_BOTH Acc bias_act_element(Acc u, Acc at, int act, int grad, Acc alpha, Acc scale) {
  if (grad == 2) return Acc(0);
  // A choice between numbers, not between products: that is what a compiler can vectorize.
  const Acc slope = at > Acc(0) ? Acc(1) : act == kLinear ? Acc(1) : alpha;
  return u * slope * scale;
}

#ifdef WITH_CUDA
// Returns a cudaError_t; the stream is a cudaStream_t.
int bias_act_cuda(const BiasAct& work, Scalar type, void* stream);
#endif

}  // namespace image_ops
