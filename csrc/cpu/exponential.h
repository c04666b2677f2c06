// The exponential of the CPU kernels. Compiled once per CPU level, like simd.h.
#pragma once

#include "simd_block.h"

namespace precast::PRECAST_CPU_LEVEL {

// exp(x + low) for x + low <= 88 and a `low` that is small compared with 1; `all` is their sum. It is 2^n exp(r), for
// n = round(all / ln 2) and r = x - n ln 2 + low. ln 2 is split so that n times its upper part is exact without a fused
// multiply-add. exp(r) = 1 + r + r^2 q(r), with q fitted to the least relative error for |r| < 0.35, which is 1.1e-7. A
// result below the normal range becomes zero. NaN stays NaN.
template <class Low>
PRECAST_INLINE FloatPart exp_part(FloatPart x, FloatPart all, const Low& with_low) {
  const FloatPart zero = {};
  // 1.5 * 2^23: adding it to a number rounds the number to an integer. With 127 more, the low bits are 2^n's exponent.
  const FloatPart magic = zero + (12582912.0f + 127.0f);
  const FloatPart shifted = fma_part(all, zero + 1.44269504f, magic);
  const FloatPart n = shifted - magic;
  FloatPart r = fma_part(n, zero - 0.693359375f, x);
  r = with_low(fma_part(n, zero + 2.12194440e-4f, r));
  FloatPart series = fma_part(zero + 8.312524e-3f, r, zero + 4.1890122e-2f);
  series = fma_part(series, r, zero + 0.16667114f);
  series = fma_part(series, r, zero + 0.4999923f);
  series = fma_part(series, r, zero + 1.0f);
  series = fma_part(series, r, zero + 1.0f);
  const FloatPart power = (FloatPart)((WordPart)shifted << 23);
  return select(is_less(all, zero - 87.336544f), zero, series * power);
}

PRECAST_BULKY Floats exponential(Floats a) {
#define PRECAST_PART(i) exp_part(a.part[i], a.part[i], [](FloatPart r) PRECAST_EVERYWHERE { return r; })
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Block exponential(Block a) { return {exponential(a.first), exponential(a.second)}; }

// exp(a + low).
PRECAST_BULKY Floats exponential(Floats a, Floats low) {
#define PRECAST_PART(i) \
  exp_part(a.part[i], a.part[i] + low.part[i], [&](FloatPart r) PRECAST_EVERYWHERE { return r + low.part[i]; })
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

}  // namespace precast::PRECAST_CPU_LEVEL
