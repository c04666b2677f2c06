// What forward and backward share on the GPU.
#pragma once

#include "../common/norm.cuh"
#include "args.h"

#define NORM_NAMESPACE layer_norm

namespace precast {
namespace layer_norm {

// Sixteen bytes of one number, for a weight or a bias that is not there.
template <class T>
DEVICE Vector filled(float value) {
  float element[T::kPerWord];
#pragma unroll
  for (int e = 0; e < T::kPerWord; ++e) element[e] = value;
  const u32 word = T::pack(element);
  return Vector{{word, word, word, word}};
}

// The mean of a row was found by a sum that was rounded, so the deviations from it have a mean of their own, which is
// taken out again: a row of equal numbers has the variance zero, whatever its width.
struct Statistics {
  float mean, r;  // r = rsqrt(variance + eps)
};

DEVICE Statistics corrected(float mean, float deviations, float squares, float inverse_hidden, float eps) {
  const float shift = deviations * inverse_hidden;
  const float variance = squares * inverse_hidden - shift * shift;
  // Once per row, so exactly rounded: rsqrtf is off by up to two units. NaN stays NaN.
  return {mean + shift, 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + eps)};
}

}  // namespace layer_norm
}  // namespace precast
