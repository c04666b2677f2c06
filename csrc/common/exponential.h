// Exponentials for the CPU softmax kernels. Compiled once per CPU level, like simd.h.
#pragma once

#include "simd.h"

namespace precast::PRECAST_CPU_LEVEL {

// exp(x) for x <= 0, including minus infinity; NaN stays NaN. x = n ln 2 + r with |r| < 0.35. The series of exp(r) up
// to r^7 / 7! has an error of 6e-9. ln 2 is split so that n times its upper part is exact without a fused multiply-add.
// 2^n is split into two factors so that results below the normal range are correct.
PRECAST_INLINE FloatPart exp_part(FloatPart x) {
  const FloatPart zero = {};
  const FloatPart magic = zero + 12582912.0f;  // 1.5 * 2^23: adding it to a number rounds the number to an integer
  FloatPart bounded = select(is_less(x, zero - 104.0f), zero - 104.0f, x);
  bounded = select(is_number(x), bounded, zero);
  const FloatPart shifted = fma_part(bounded, zero + 1.44269504f, magic);
  const FloatPart n = shifted - magic;
  FloatPart r = fma_part(n, zero - 0.693359375f, bounded);
  r = fma_part(n, zero + 2.12194440e-4f, r);
  FloatPart series = zero + 1.0f / 5040.0f;
  series = fma_part(series, r, zero + 1.0f / 720.0f);
  series = fma_part(series, r, zero + 1.0f / 120.0f);
  series = fma_part(series, r, zero + 1.0f / 24.0f);
  series = fma_part(series, r, zero + 1.0f / 6.0f);
  series = fma_part(series, r, zero + 0.5f);
  series = fma_part(series * r, r, r) + 1.0f;
  const SignedPart power = (SignedPart)shifted - (SignedPart)magic, half = power >> 1;
  const FloatPart low = (FloatPart)((half + 127) << 23), high = (FloatPart)((power - half + 127) << 23);
  return select(is_number(x), series * low * high, x);
}

PRECAST_INLINE Floats exponential(Floats a) {
#define PRECAST_PART(i) exp_part(a.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE float largest_lane(Floats a) {
  float lane[kLanes];
  store(lane, a);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] = lane[i + width] > lane[i] ? lane[i + width] : lane[i];
  }
  return lane[0];
}

}  // namespace precast::PRECAST_CPU_LEVEL
