// What forward and backward share on the GPU.
#pragma once

#include "../common/norm.cuh"
#include "args.h"

#define NORM_NAMESPACE rms_norm

namespace precast {
namespace rms_norm {

// What is added to the weight. Minus zero leaves every number as it is, a negative zero included.
DEVICE float weight_offset(int casting) { return casting == kGemma ? 1.0f : -0.0f; }

template <class T>
DEVICE float sum_of_squares(const Vector& v, float sum) {
  for_elements<T>(v, [&](int, float a) { sum = fmaf(a, a, sum); });
  return sum;
}

}  // namespace rms_norm
}  // namespace precast
