// The curved activations: value and slope at one point, with the same formulas on the CPU and on the GPU. `Real` is
// float or double. IMAGE_INLINE, and exponential, exponential_minus_1 and log_plus_1 for negative and small arguments,
// are the includer's.
#pragma once

#include "args.h"

namespace precast {
namespace image {

template <class Real>
struct Point {
  Real value, slope;
};

// f(u) and f'(u). Exponentials are taken of -|u|, so nothing overflows and no difference loses digits. There is one
// call of each, because on a GPU each is a hundred instructions.
template <class Real>
IMAGE_INLINE Point<Real> curve(int activation, Real u, Real alpha) {
  const Real one = 1, zero = 0;
  if (activation <= kLeakyRelu) {  // the caller's alpha is 1 for kLinear and 0 for kRelu
    const Real below = activation == kRelu ? zero : u * alpha;
    return {u < zero ? below : u, u > zero ? one : alpha};
  }
  const bool units = activation == kElu || activation == kSelu;
  const Real scale = activation == kSelu ? Real(1.0507009873554804934193349852946) : one;
  if (units && u > zero) return {scale * u, scale};
  const Real far = u < zero ? u : -u;  // -|u|, and NaN for NaN
  const Real at = activation == kTanh ? far + far : far;
  const Real e = exponential(at), share = one / (one + e);
  const Real middle = e * share * share, upper = u < zero ? e * share : share;  // the sigmoid's slope and value
  if (units || activation == kTanh) {
    const Real m = exponential_minus_1(at);
    const Real depth = activation == kSelu ? scale * Real(1.6732632423543772848170429916717) : one;
    if (units) return {depth * m, depth * e};
    return {(u < zero ? m : -m) * share, Real(4) * middle};
  }
  if (activation == kSigmoid) return {upper, middle};
  if (activation == kSoftplus) return {(u < zero ? zero : u) + log_plus_1(e), upper};
  return {u * upper, upper + u * middle};  // swish
}

}  // namespace image
}  // namespace precast
