// Shared by forward and backward on the GPU.
#pragma once

#include "../gpu/norm.cuh"
#include "../norm/args.h"

namespace precast {
namespace rms_norm {

// The number to add to the weight. Minus zero leaves every number unchanged, including a negative zero.
DEVICE float weight_offset(int casting) { return casting == kGemma ? 1.0f : -0.0f; }

template <class T>
DEVICE float sum_of_squares(const Vector& v, float sum) {
  for_elements<T>(v, [&](int, float a) { sum = fmaf(a, a, sum); });
  return sum;
}

}  // namespace rms_norm
}  // namespace precast
