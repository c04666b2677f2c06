// The elementary functions of the activations, sixteen lanes at a time. The image ops use them too.
#pragma once

#include "../cpu/exponential.h"

namespace precast::PRECAST_CPU_LEVEL {

PRECAST_INLINE Floats magnitude(Floats a) {
#define PRECAST_PART(i) (FloatPart)((WordPart)a.part[i] & 0x7fffffffu)
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
PRECAST_INLINE Floats bounded(Floats a, float limit) { return greater(lesser(a, broadcast(limit)), broadcast(-limit)); }

// 1 / (1 + exp(-x)), and one minus that, both to the last places. From -89 down the exponential is infinite; then both
// are zero, and so is what they are factors of if it is finite: x itself, bounded, in a slope.
constexpr float kSharp = 89.0f;
struct Share {
  Floats below, above;
};

PRECAST_INLINE Share sigmoid(Floats x) {
  const Floats one = broadcast(1.0f), e = exponential(broadcast(0) - bounded(x, kSharp));
  const Floats below = one / plus(e, one);
  return {below, lesser(e, broadcast(3e38f)) * below};
}

}  // namespace precast::PRECAST_CPU_LEVEL
