// Shared by forward and backward on the GPU.
#pragma once

#include "../gpu/norm.cuh"
#include "args.h"

namespace precast {
namespace layer_norm {

// Sixteen bytes filled with one number, for an absent weight or bias.
template <class T>
DEVICE Vector filled(float value) {
  float element[T::kPerWord];
#pragma unroll
  for (int e = 0; e < T::kPerWord; ++e) element[e] = value;
  const u32 word = T::pack(element);
  return Vector{{word, word, word, word}};
}

// ---- the statistics of a row ----
//
// A row of equal numbers must have that number as its mean and no variance, whatever its width and value. The sum may
// be rounded, so the deviations from the mean have a mean of their own, which is subtracted again.

// A sum divided by a count, rounded once. Multiplying by the inverse count is off by up to two units.
DEVICE float divided(float sum, float count, float inverse) {
  const float quotient = sum * inverse;
  return fmaf(fmaf(-quotient, count, sum), inverse, quotient);
}

// True if the numbers are far from zero compared with their spread. The sum of squares minus the square of the sum has
// then lost digits, and must be recomputed around the mean. Also true if it is not finite.
DEVICE bool far_from_zero(float mean, float squares, float hidden) { return !(mean * mean * hidden < 8.0f * squares); }

// Subtracts a number near the mean from all elements of a float32 row, in place.
template <class T, int V>
DEVICE void shift(Vector (&v)[V], float base, u32 vectors) {
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (threadIdx.x + j * blockDim.x >= vectors) continue;
    v[j] = combine<T>(v[j], v[j], [&](int, float p, float) { return p - base; });
  }
}

// 1 / sqrt(variance + eps) with each operation rounded once; rsqrtf is off by up to two units. NaN stays NaN, and a
// variance that has overflowed becomes NaN: its inverse is zero, and the row would be zeros that nobody notices.
DEVICE float inverse_deviation(float squares, float inverse_hidden, float eps) {
  const float variance = (squares < 0.0f ? 0.0f : squares) * inverse_hidden + eps;
  return fmaf(variance, 0.0f, 1.0f / sqrtf(variance));
}

}  // namespace layer_norm
}  // namespace precast
