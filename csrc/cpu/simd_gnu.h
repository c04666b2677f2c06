// One register of the x86 levels and of NEON, as a vector type that GCC and Clang provide on every machine.
//
// The compilers provide + - * / and comparisons lane by lane. The few other instructions are written as assembly.
// Parsing <immintrin.h> alone takes 0.4 s, three times as long as compiling a family, and <arm_neon.h> takes half as
// long as that. Include it only through simd.h.
#pragma once

// Functions of many instructions are called, not inlined, at the level that is compiled for size. A conversion from
// float16 takes thirty instructions there, and inlining them doubled the time to compile.
#if PRECAST_WIDTH == 4 && defined(__x86_64__)
#define PRECAST_SMALL 1
#define PRECAST_BULKY PRECAST_RARE
#else
#define PRECAST_SMALL 0
#define PRECAST_BULKY PRECAST_INLINE
#endif

namespace precast::PRECAST_CPU_LEVEL {

typedef float FloatPart __attribute__((vector_size(PRECAST_WIDTH * 4)));
typedef uint32_t WordPart __attribute__((vector_size(PRECAST_WIDTH * 4)));
typedef int32_t SignedPart __attribute__((vector_size(PRECAST_WIDTH * 4)));
typedef uint16_t HalfPart __attribute__((vector_size(PRECAST_WIDTH * 2)));
typedef uint8_t BytePart __attribute__((vector_size(PRECAST_WIDTH)));
typedef SignedPart Mask;  // all bits of a lane, or none

template <class T>
PRECAST_INLINE T load_bits(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

PRECAST_INLINE FloatPart load_floats(const float* from) { return load_bits<FloatPart>(from); }
PRECAST_INLINE WordPart load_words(const void* from) { return load_bits<WordPart>(from); }
PRECAST_INLINE HalfPart load_halves(const void* from) { return load_bits<HalfPart>(from); }
PRECAST_INLINE void store_bits(void* to, FloatPart value) { __builtin_memcpy(to, &value, sizeof value); }
PRECAST_INLINE void store_bits(void* to, HalfPart value) { __builtin_memcpy(to, &value, sizeof value); }
PRECAST_INLINE void store_bits(void* to, WordPart value) { __builtin_memcpy(to, &value, sizeof value); }

PRECAST_INLINE Mask is_less(FloatPart a, FloatPart b) { return (Mask)(a < b); }
PRECAST_INLINE Mask is_number(FloatPart a) { return (Mask)(a == a); }
PRECAST_INLINE Mask is_negative(FloatPart a) { return (SignedPart)a >> 31; }  // by the sign bit
// In two steps: the compilers handle each byte separately if they convert bytes to words in one step.
PRECAST_INLINE Mask is_set(const uint8_t* bytes) {
  const HalfPart half = __builtin_convertvector(load_bits<BytePart>(bytes), HalfPart);
  return (Mask)(__builtin_convertvector(half, WordPart) != 0u);
}
// Of the pairs of bytes: whether the first is set, and whether the second is.
PRECAST_INLINE Mask is_even_set(const uint8_t* bytes) {
  return (Mask)((__builtin_convertvector(load_bits<HalfPart>(bytes), WordPart) & 0xffu) != 0u);
}
PRECAST_INLINE Mask is_odd_set(const uint8_t* bytes) {
  return (Mask)(__builtin_convertvector(load_bits<HalfPart>(bytes), WordPart) > 0xffu);
}

PRECAST_INLINE WordPart select(Mask mask, WordPart yes, WordPart no) { return mask ? yes : no; }

PRECAST_INLINE FloatPart select(Mask mask, FloatPart yes, FloatPart no) {
  return (FloatPart)select(mask, (WordPart)yes, (WordPart)no);
}

// `b` if it is greater than `a`, else `a`; so `a` if either of them is NaN.
PRECAST_INLINE FloatPart greater_part(FloatPart a, FloatPart b) {
#if PRECAST_WIDTH > 4
  asm("vmaxps %1, %2, %0" : "=v"(b) : "vm"(a), "v"(b));
  return b;
#elif defined(__x86_64__)
  asm("maxps %1, %0" : "+x"(b) : "x"(a));
  return b;
#else
  return select(is_less(a, b), b, a);
#endif
}

PRECAST_INLINE FloatPart lesser_part(FloatPart a, FloatPart b) {
#if PRECAST_WIDTH > 4
  asm("vminps %1, %2, %0" : "=v"(b) : "vm"(a), "v"(b));
  return b;
#elif defined(__x86_64__)
  asm("minps %1, %0" : "+x"(b) : "x"(a));
  return b;
#else
  return select(is_less(b, a), b, a);
#endif
}

PRECAST_INLINE FloatPart fma_part(FloatPart a, FloatPart b, FloatPart c) {
#if PRECAST_WIDTH > 4
  asm("vfmadd231ps %2, %1, %0" : "+v"(c) : "%v"(a), "vm"(b));
  return c;
#elif defined(__aarch64__)
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
  return c;
#else
  return a * b + c;  // two roundings: SSE2 has nothing better
#endif
}

// Lanes of `a` followed by `b`: every other lane starting from the first or from the second; the lower or the upper
// halves of both, interleaved.
#if PRECAST_WIDTH == 4
#define PRECAST_EVEN 0, 2, 4, 6
#define PRECAST_ODD 1, 3, 5, 7
#define PRECAST_LOW 0, 4, 1, 5
#define PRECAST_HIGH 2, 6, 3, 7
#define PRECAST_OTHER(k) 0 ^ k, 1 ^ k, 2 ^ k, 3 ^ k
#elif PRECAST_WIDTH == 8
#define PRECAST_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define PRECAST_ODD 1, 3, 5, 7, 9, 11, 13, 15
#define PRECAST_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define PRECAST_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#define PRECAST_OTHER(k) 0 ^ k, 1 ^ k, 2 ^ k, 3 ^ k, 4 ^ k, 5 ^ k, 6 ^ k, 7 ^ k
#else
#define PRECAST_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define PRECAST_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define PRECAST_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define PRECAST_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define PRECAST_OTHER(k) \
  0 ^ k, 1 ^ k, 2 ^ k, 3 ^ k, 4 ^ k, 5 ^ k, 6 ^ k, 7 ^ k, 8 ^ k, 9 ^ k, 10 ^ k, 11 ^ k, 12 ^ k, 13 ^ k, 14 ^ k, 15 ^ k
#endif
#if defined(__clang__)
#define PRECAST_LANES(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PRECAST_LANES(a, b, ...) __builtin_shuffle(a, b, SignedPart{__VA_ARGS__})
#endif

PRECAST_INLINE FloatPart even_part(FloatPart a, FloatPart b) { return PRECAST_LANES(a, b, PRECAST_EVEN); }
PRECAST_INLINE FloatPart odd_part(FloatPart a, FloatPart b) { return PRECAST_LANES(a, b, PRECAST_ODD); }
PRECAST_INLINE FloatPart low_part(FloatPart a, FloatPart b) { return PRECAST_LANES(a, b, PRECAST_LOW); }
PRECAST_INLINE FloatPart high_part(FloatPart a, FloatPart b) { return PRECAST_LANES(a, b, PRECAST_HIGH); }

// Moves lane k to lane 0, for k = 1, 2, 4 or 8. The lanes beyond k are moved so that folding works (simd.h).
template <int k>
PRECAST_INLINE FloatPart moved_part(FloatPart a) {
  return PRECAST_LANES(a, a, PRECAST_OTHER(k));
}
PRECAST_INLINE float first_lane(FloatPart a) { return a[0]; }

PRECAST_INLINE FloatPart sqrt_part(FloatPart a) {
#if PRECAST_WIDTH > 4
  asm("vsqrtps %1, %0" : "=v"(a) : "v"(a));
#elif defined(__aarch64__)
  asm("fsqrt %0.4s, %1.4s" : "=w"(a) : "w"(a));
#else
  asm("sqrtps %1, %0" : "=x"(a) : "x"(a));
#endif
  return a;
}

// Avoids the libm call that the compiler's own square root adds for negative numbers.
PRECAST_INLINE double sqrt(double value) {
#if PRECAST_WIDTH > 4
  asm("vsqrtsd %1, %1, %0" : "=v"(value) : "v"(value));
#elif defined(__aarch64__)
  asm("fsqrt %d0, %d1" : "=w"(value) : "w"(value));
#else
  asm("sqrtsd %1, %0" : "=x"(value) : "x"(value));
#endif
  return value;
}

PRECAST_INLINE WordPart widen(HalfPart half) {
#if PRECAST_WIDTH > 4  // the compilers split a register of 512 bits
  WordPart word;
  asm("vpmovzxwd %1, %0" : "=v"(word) : "vm"(half));
  return word;
#else
  return __builtin_convertvector(half, WordPart);
#endif
}

PRECAST_INLINE HalfPart narrow(WordPart word) {
#if PRECAST_WIDTH == 4 && defined(__x86_64__)
  // SSE2 only packs with signed saturation. Sign-extending the low halves first prevents any saturation.
  SignedPart low = (SignedPart)(word << 16) >> 16;
  asm("packssdw %0, %0" : "+x"(low));
  return load_bits<HalfPart>(&low);
#else
  return __builtin_convertvector(word, HalfPart);
#endif
}

PRECAST_INLINE FloatPart float_of_bf16(HalfPart half) { return (FloatPart)(widen(half) << 16); }

// A float whose upper half is the bfloat16 number next to `value`, ties to even; the lower half is to be dropped. A NaN
// keeps its sign and upper payload and becomes quiet: the rounding term could carry into its exponent.
PRECAST_INLINE WordPart rounded_to_bf16(FloatPart value) {
  const WordPart bits = (WordPart)value;
  return select(is_number(value), bits + (((bits >> 16) & 1u) + 0x7fffu), bits | 0x400000u);
}

PRECAST_INLINE HalfPart bf16_of_float(FloatPart value) { return narrow(rounded_to_bf16(value) >> 16); }

// Pairs of bfloat16 numbers: `even` rounded is the lower half of each, `odd` the upper.
PRECAST_BULKY WordPart bf16_pairs_of_floats(FloatPart even, FloatPart odd) {
  return (WordPart)((rounded_to_bf16(even) >> 16) | (rounded_to_bf16(odd) & 0xffff0000u));
}

PRECAST_BULKY FloatPart float_of_f16(HalfPart half) {
#if PRECAST_WIDTH > 4
  FloatPart value;
  asm("vcvtph2ps %1, %0" : "=v"(value) : "v"(half));
  return value;
#elif defined(__aarch64__)
  FloatPart value;
  asm("fcvtl %0.4s, %1.4h" : "=w"(value) : "w"(half));
  return value;
#else
  WordPart bits = widen(half);
  WordPart sign = (bits & 0x8000u) << 16;
  WordPart magnitude = (bits & 0x7fffu) << 13;
  WordPart exponent = magnitude & 0x0f800000u;
  WordPart normal = magnitude + ((127u - 15u) << 23);
  // Infinity and NaN: use the largest exponent, and set the quiet bit if there is a payload.
  SignedPart is_nan = (SignedPart)magnitude > 0x0f800000;
  WordPart special = (magnitude | 0x7f800000u) | ((WordPart)is_nan & 0x00400000u);
  // Subnormal: with exponent 2^-14 the bits form a normal float, and the subtraction is exact. No subnormal float
  // occurs, so the processor's flush-to-zero setting has no effect, like with the conversion instruction.
  FloatPart offset = (FloatPart)(WordPart{} + (113u << 23));
  WordPart subnormal = (WordPart)((FloatPart)(magnitude + (113u << 23)) - offset);
  WordPart finite = select((Mask)(exponent == 0u), subnormal, normal);
  return (FloatPart)(sign | select((Mask)(exponent == 0x0f800000u), special, finite));
#endif
}

PRECAST_BULKY HalfPart f16_of_float(FloatPart value) {
#if PRECAST_WIDTH > 4
  HalfPart result;
  asm("vcvtps2ph $0, %1, %0" : "=v"(result) : "v"(value));  // 0: to nearest, ties to even
  return result;
#elif defined(__aarch64__)
  HalfPart result;
  asm("fcvtn %0.4h, %1.4s" : "=w"(result) : "w"(value));
  return result;
#else
  WordPart bits = (WordPart)value;
  WordPart sign = (bits >> 16) & 0x8000u;
  WordPart magnitude = bits & 0x7fffffffu;
  // Normal result: rebias, and round the 13 dropped bits to nearest even. Values from 65520 on carry into infinity.
  WordPart normal = (magnitude + (((magnitude >> 13) & 1u) + 0xfffu - (112u << 23))) >> 13;
  // Subnormal result: adding 0.5 makes the float adder round at the right place.
  FloatPart half = (FloatPart)(WordPart{} + 0x3f000000u);
  WordPart subnormal = (WordPart)((FloatPart)magnitude + half) - 0x3f000000u;
  WordPart nan = ((magnitude >> 13) & 0x3ffu) | 0x7e00u;
  WordPart result = select((SignedPart)magnitude < 0x38800000, subnormal, normal);
  result = select((SignedPart)magnitude >= 0x47800000, WordPart{} + 0x7c00u, result);
  result = select(is_number(value), result, nan);
  return narrow(sign | result);
#endif
}

// Stores that bypass the caches; see stream() of simd.h.
template <class Part>
PRECAST_INLINE void stream_part(void* to, Part part) {
#if PRECAST_WIDTH > 4
  asm("vmovntps %1, %0" : "=m"(*static_cast<Part*>(to)) : "v"(part));
#elif defined(__x86_64__)
  for (unsigned i = 0; i < sizeof part / 8; ++i) {
    uint64_t word = load_bits<uint64_t>(reinterpret_cast<const char*>(&part) + i * 8);
    asm("movnti %1, %0" : "=m"(static_cast<uint64_t*>(to)[i]) : "r"(word));
  }
#else
  store_bits(to, part);  // ARM has a hint for pairs of registers, which was not measured here
#endif
}

}  // namespace precast::PRECAST_CPU_LEVEL
