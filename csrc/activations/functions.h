// The elementary functions of the activations, sixteen lanes at a time. Included only by cpu.cpp.
#pragma once

#include "../common/simd.h"

namespace precast::PRECAST_CPU_LEVEL {

PRECAST_INLINE Floats magnitude(Floats a) {
#define PRECAST_PART(i) (FloatPart)((WordPart)a.part[i] & 0x7fffffffu)
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats minus_magnitude(Floats a) {
#define PRECAST_PART(i) (FloatPart)((WordPart)a.part[i] | 0x80000000u)
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// A sum that no compiler can fuse with a preceding product. The levels differ in whether it would.
PRECAST_INLINE Floats plus(Floats a, Floats b) { return fma(a, broadcast(1.0f), b); }

// Keeps the upper half of each number's 24 bits.
PRECAST_INLINE Floats leading_bits(Floats a) {
#define PRECAST_PART(i) (FloatPart)((WordPart)a.part[i] & 0xfffff000u)
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// Selects by the sign bit of `a`.
PRECAST_INLINE Floats where_negative(Floats a, Floats yes, Floats no) {
#define PRECAST_PART(i) select(is_negative(a.part[i]), yes.part[i], no.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// The nearest number within [-limit, limit]. NaN stays NaN.
PRECAST_INLINE Floats bounded(Floats a, float limit) {
  const Floats top = broadcast(limit), bottom = broadcast(-limit);
#define PRECAST_PART(i) select(is_less(top.part[i], a.part[i]), top.part[i], a.part[i])
  const Floats upper = {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
#define PRECAST_PART(i) select(is_less(upper.part[i], bottom.part[i]), bottom.part[i], upper.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// `yes` where a < b, else `no`; so NaN takes `no`.
PRECAST_INLINE Floats where_less(Floats a, Floats b, Floats yes, Floats no) {
#define PRECAST_PART(i) select(is_less(a.part[i], b.part[i]), yes.part[i], no.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// Two to the power of n, for integers n from -126 to 127 in the low bits of `shifted`.
PRECAST_INLINE Floats power_of_two(Floats shifted) {
#define PRECAST_PART(i) (FloatPart)(((WordPart)shifted.part[i] + 127u) << 23)
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// exp(a + low), for a <= 0 and a `low` that is small compared with 1. The error is about one unit in the last place,
// down to the smallest number above zero.
PRECAST_INLINE Floats exp_of_negative(Floats a, Floats low) {
  a = bounded(a, 120.0f);  // exp(-120) is zero
  // Adding this number rounds to an integer, which is then in the low bits. Half of n is rounded and applied twice,
  // because a single power of two would leave the range of normal numbers too early.
  const Floats shift = broadcast(12582912.0f);  // 1.5 * 2^23
  const Floats shifted = fma(a, broadcast(0.72134752f), shift), half = shifted - shift;
  const Floats n = half + half;
  // ln 2 in two parts. The first has so few bits that its product with n is exact.
  Floats r = fma(n, broadcast(-0.693359375f), a);
  r = plus(low, fma(n, broadcast(2.12194440e-4f), r));
  // |r| is at most ln 2, because n is even. Taylor's series up to the tenth power has a remainder of 4e-10.
  Floats p = broadcast(2.7557319e-07f);
  p = fma(p, r, broadcast(2.7557319e-06f));
  p = fma(p, r, broadcast(2.4801587e-05f));
  p = fma(p, r, broadcast(1.9841270e-04f));
  p = fma(p, r, broadcast(1.3888889e-03f));
  p = fma(p, r, broadcast(8.3333333e-03f));
  p = fma(p, r, broadcast(4.1666667e-02f));
  p = fma(p, r, broadcast(1.6666667e-01f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  const Floats scale = power_of_two(shifted);
  return p * scale * scale;
}

}  // namespace precast::PRECAST_CPU_LEVEL
