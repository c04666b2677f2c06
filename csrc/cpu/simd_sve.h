// One register of the SVE levels, as intrinsics with a vector length known to the compiler (-msve-vector-bits).
//
// Vectors of a length known only at run time cannot be members of structs or arrays, and the order of a sum would
// depend on the machine. So each length is a level of its own, and cpu_level.cpp selects the one that the processor
// has. A 16-bit format is stored in the low halves of 32-bit lanes, as SVE's loads, stores and conversions expect.
// Include it only through simd.h.
#pragma once

#include <arm_sve.h>

#define PRECAST_SMALL 0
#define PRECAST_BULKY PRECAST_INLINE

namespace precast::PRECAST_CPU_LEVEL {

#define PRECAST_FIXED __attribute__((arm_sve_vector_bits(PRECAST_WIDTH * 32)))
typedef svfloat32_t FloatPart PRECAST_FIXED;
typedef svuint32_t WordPart PRECAST_FIXED;
typedef svint32_t SignedPart PRECAST_FIXED;
typedef svbool_t Mask PRECAST_FIXED;
#undef PRECAST_FIXED

struct HalfPart {
  WordPart word;
};

PRECAST_INLINE Mask all_lanes() { return svptrue_b32(); }

PRECAST_INLINE FloatPart load_floats(const float* from) { return svld1_f32(all_lanes(), from); }
PRECAST_INLINE WordPart load_words(const void* from) {
  return svld1_u32(all_lanes(), static_cast<const uint32_t*>(from));
}
PRECAST_INLINE HalfPart load_halves(const void* from) {
  return {svld1uh_u32(all_lanes(), static_cast<const uint16_t*>(from))};
}
PRECAST_INLINE void store_bits(void* to, FloatPart value) { svst1_f32(all_lanes(), static_cast<float*>(to), value); }
PRECAST_INLINE void store_bits(void* to, WordPart value) { svst1_u32(all_lanes(), static_cast<uint32_t*>(to), value); }
PRECAST_INLINE void store_bits(void* to, HalfPart value) {
  svst1h_u32(all_lanes(), static_cast<uint16_t*>(to), value.word);
}

PRECAST_INLINE Mask is_less(FloatPart a, FloatPart b) { return svcmplt_f32(all_lanes(), a, b); }
PRECAST_INLINE Mask is_number(FloatPart a) { return svcmpeq_f32(all_lanes(), a, a); }
PRECAST_INLINE Mask is_negative(FloatPart a) { return svcmplt_n_s32(all_lanes(), (SignedPart)a, 0); }
PRECAST_INLINE Mask is_set(const uint8_t* bytes) {
  return svcmpne_n_u32(all_lanes(), svld1ub_u32(all_lanes(), bytes), 0);
}
// Of the pairs of bytes: whether the first is set, and whether the second is.
PRECAST_INLINE Mask is_even_set(const uint8_t* bytes) {
  return svcmpne_n_u32(all_lanes(), load_halves(bytes).word & 0xffu, 0);
}
PRECAST_INLINE Mask is_odd_set(const uint8_t* bytes) {
  return svcmpgt_n_u32(all_lanes(), load_halves(bytes).word, 0xff);
}

PRECAST_INLINE WordPart select(Mask mask, WordPart yes, WordPart no) { return svsel_u32(mask, yes, no); }
PRECAST_INLINE FloatPart select(Mask mask, FloatPart yes, FloatPart no) { return svsel_f32(mask, yes, no); }

// `b` if it is greater than `a`, else `a`; so `a` if either of them is NaN.
PRECAST_INLINE FloatPart greater_part(FloatPart a, FloatPart b) { return select(is_less(a, b), b, a); }
PRECAST_INLINE FloatPart lesser_part(FloatPart a, FloatPart b) { return select(is_less(b, a), b, a); }

PRECAST_INLINE FloatPart fma_part(FloatPart a, FloatPart b, FloatPart c) { return svmla_f32_x(all_lanes(), c, a, b); }

PRECAST_INLINE FloatPart even_part(FloatPart a, FloatPart b) { return svuzp1_f32(a, b); }
PRECAST_INLINE FloatPart odd_part(FloatPart a, FloatPart b) { return svuzp2_f32(a, b); }
PRECAST_INLINE FloatPart low_part(FloatPart a, FloatPart b) { return svzip1_f32(a, b); }
PRECAST_INLINE FloatPart high_part(FloatPart a, FloatPart b) { return svzip2_f32(a, b); }

// Moves lane k to lane 0, and the lanes behind it along.
template <int k>
PRECAST_INLINE FloatPart moved_part(FloatPart a) {
  return svext_f32(a, a, k);
}
PRECAST_INLINE float first_lane(FloatPart a) {
  float lane;
  asm("fmov %s0, %s1" : "=w"(lane) : "w"(a));
  return lane;
}

PRECAST_INLINE FloatPart sqrt_part(FloatPart a) { return svsqrt_f32_x(all_lanes(), a); }

// Avoids the libm call that the compiler's own square root adds for negative numbers.
PRECAST_INLINE double sqrt(double value) {
  asm("fsqrt %d0, %d1" : "=w"(value) : "w"(value));
  return value;
}

PRECAST_INLINE FloatPart float_of_bf16(HalfPart half) { return (FloatPart)(half.word << 16); }

// A float whose upper half is the bfloat16 number next to `value`, ties to even; the lower half is to be dropped. A NaN
// keeps its sign and upper payload and becomes quiet: the rounding term could carry into its exponent.
PRECAST_INLINE WordPart rounded_to_bf16(FloatPart value) {
  const WordPart bits = (WordPart)value;
  return select(is_number(value), bits + (((bits >> 16) & 1u) + 0x7fffu), bits | 0x400000u);
}

PRECAST_INLINE HalfPart bf16_of_float(FloatPart value) { return {rounded_to_bf16(value) >> 16}; }

// Pairs of bfloat16 numbers: `even` rounded is the lower half of each, `odd` the upper.
PRECAST_BULKY WordPart bf16_pairs_of_floats(FloatPart even, FloatPart odd) {
  return (WordPart)((rounded_to_bf16(even) >> 16) | (rounded_to_bf16(odd) & 0xffff0000u));
}

PRECAST_INLINE FloatPart float_of_f16(HalfPart half) {
  return svcvt_f32_f16_x(all_lanes(), svreinterpret_f16_u32(half.word));
}

PRECAST_INLINE HalfPart f16_of_float(FloatPart value) {
  return {svreinterpret_u32_f16(svcvt_f16_f32_x(all_lanes(), value))};
}

// Ordinary stores; see stream() of simd.h.
template <class Part>
PRECAST_INLINE void stream_part(void* to, Part part) {
  store_bits(to, part);
}

}  // namespace precast::PRECAST_CPU_LEVEL
