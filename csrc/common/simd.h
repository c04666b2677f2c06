// Sixteen floats at a time, at whatever width this translation unit is compiled for.
//
// A family's cpu.cpp is compiled once per CPU level, with -DPRECAST_CPU_LEVEL=baseline|avx2|avx512 and that level's
// machine flags. The vector is always sixteen lanes long (one, two or four registers), so every level adds, multiplies
// and reduces in the same order and rounds alike: avx2 and avx512 agree bitwise, baseline differs only because it has
// no fused multiply-add on x86. The last few elements of a span go through the same sixteen lanes (load_part,
// store_part), so a result never depends on where a span was cut.
//
// Everything lives in a namespace named by the level and nothing of the standard library is included: a function shared
// between the translation units could be linked in its AVX-512 form and then run on a machine without it.
#pragma once

#include <stdint.h>

#ifndef PRECAST_CPU_LEVEL
#error "precast: -DPRECAST_CPU_LEVEL=baseline|avx2|avx512 is missing"
#endif

#define PRECAST_JOIN_(a, b) a##b
#define PRECAST_JOIN(a, b) PRECAST_JOIN_(a, b)
#define PRECAST_WIDTH_OF_baseline 4
#define PRECAST_WIDTH_OF_avx2 8
#define PRECAST_WIDTH_OF_avx512 16
#define PRECAST_WIDTH PRECAST_JOIN(PRECAST_WIDTH_OF_, PRECAST_CPU_LEVEL)

// The expression for each register of the sixteen lanes. Constant indices, no loop: the parts stay in registers at -O2.
#if PRECAST_WIDTH == 16
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "precast: level avx512 needs -mavx512f -mavx512bw -mavx512vl -mavx512dq"
#endif
#define PRECAST_PARTS(f) f(0)
#elif PRECAST_WIDTH == 8
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "precast: level avx2 needs -mavx2 -mfma -mf16c"
#endif
#define PRECAST_PARTS(f) f(0), f(1)
#elif PRECAST_WIDTH == 4
#define PRECAST_PARTS(f) f(0), f(1), f(2), f(3)
#else
#error "precast: PRECAST_CPU_LEVEL is none of baseline, avx2, avx512"
#endif

#if defined(__aarch64__)
#include <arm_neon.h>
#elif !defined(__x86_64__)
#error "precast: the CPU kernels know x86_64 and aarch64 only"
#endif

#define PRECAST_INLINE static inline __attribute__((always_inline))
#define PRECAST_METHOD inline __attribute__((always_inline))
#define PRECAST_RARE static __attribute__((noinline, unused))

// Without an instruction for it, a conversion of float16 is thirty others: kept in one place, or compiling takes twice
// as long.
#if PRECAST_WIDTH == 4 && defined(__x86_64__)
#define PRECAST_CONVERSION PRECAST_RARE
#else
#define PRECAST_CONVERSION PRECAST_INLINE
#endif

namespace precast::PRECAST_CPU_LEVEL {

constexpr int kLanes = 16;

// Storage formats. The bits only: arithmetic is in float.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// One register. GCC and Clang give these types + - * / and comparisons lane by lane on every machine; the handful of
// instructions that remain are written as assembly, because parsing <immintrin.h> alone takes 0.4 s, three times what
// compiling a family takes.
typedef float FloatPart __attribute__((vector_size(PRECAST_WIDTH * 4)));
typedef uint32_t WordPart __attribute__((vector_size(PRECAST_WIDTH * 4)));
typedef int32_t SignedPart __attribute__((vector_size(PRECAST_WIDTH * 4)));
typedef uint16_t HalfPart __attribute__((vector_size(PRECAST_WIDTH * 2)));

struct Floats {
  FloatPart part[kLanes / PRECAST_WIDTH];
};

// Memory is always reached one register at a time: a copy of all sixteen lanes would go through the stack.
template <class T>
PRECAST_INLINE T load_bits(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
PRECAST_INLINE void store_bits(void* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// ---- One register ---------------------------------------------------------------------------------------------------

PRECAST_INLINE FloatPart fma_part(FloatPart a, FloatPart b, FloatPart c) {
#if PRECAST_WIDTH > 4
  asm("vfmadd231ps %2, %1, %0" : "+v"(c) : "%v"(a), "vm"(b));
  return c;
#elif defined(__aarch64__)
  return (FloatPart)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;  // two roundings: SSE2 has nothing better
#endif
}

PRECAST_INLINE FloatPart sqrt_part(FloatPart a) {
#if PRECAST_WIDTH > 4
  asm("vsqrtps %1, %0" : "=v"(a) : "v"(a));
  return a;
#elif defined(__aarch64__)
  return (FloatPart)vsqrtq_f32((float32x4_t)a);
#else
  asm("sqrtps %1, %0" : "=x"(a) : "x"(a));
  return a;
#endif
}

PRECAST_INLINE WordPart select_part(SignedPart mask, WordPart yes, WordPart no) {
  return ((WordPart)mask & yes) | (~(WordPart)mask & no);
}

PRECAST_INLINE WordPart widen(HalfPart half) { return __builtin_convertvector(half, WordPart); }

PRECAST_INLINE HalfPart narrow(WordPart word) {
#if PRECAST_WIDTH == 4 && defined(__x86_64__)
  // SSE2 packs with signed saturation only: sign-extend the low halves first, then nothing saturates.
  SignedPart low = (SignedPart)(word << 16) >> 16;
  asm("packssdw %0, %0" : "+x"(low));
  return load_bits<HalfPart>(&low);
#else
  return __builtin_convertvector(word, HalfPart);
#endif
}

PRECAST_INLINE FloatPart float_of_bf16(HalfPart half) { return (FloatPart)(widen(half) << 16); }

// To nearest, ties to even. A NaN keeps its sign and upper payload and becomes quiet: adding the rounding term to it
// could carry into the exponent and make it infinite.
PRECAST_INLINE HalfPart bf16_of_float(FloatPart value) {
  WordPart bits = (WordPart)value;
  WordPart rounded = (bits + (((bits >> 16) & 1u) + 0x7fffu)) >> 16;
  WordPart quiet = (bits >> 16) | 0x40u;
  return narrow(select_part((SignedPart)(value != value), quiet, rounded));
}

PRECAST_CONVERSION FloatPart float_of_f16(HalfPart half) {
#if PRECAST_WIDTH > 4
  FloatPart value;
  asm("vcvtph2ps %1, %0" : "=v"(value) : "v"(half));
  return value;
#else
  WordPart bits = widen(half);
  WordPart sign = (bits & 0x8000u) << 16;
  WordPart magnitude = (bits & 0x7fffu) << 13;
  WordPart exponent = magnitude & 0x0f800000u;
  WordPart normal = magnitude + ((127u - 15u) << 23);
  // Infinity and NaN: to the largest exponent; the quiet bit goes on if a payload is there.
  SignedPart is_nan = (SignedPart)magnitude > 0x0f800000;
  WordPart special = (magnitude | 0x7f800000u) | ((WordPart)is_nan & 0x00400000u);
  // Subnormal: with 2^-14 in front the bits form a normal float, and the subtraction is exact. No subnormal float
  // appears, so the processor's flush-to-zero setting is without effect, as it is on the conversion instruction.
  FloatPart offset = (FloatPart)(WordPart{} + (113u << 23));
  WordPart subnormal = (WordPart)((FloatPart)(magnitude + (113u << 23)) - offset);
  WordPart finite = select_part((SignedPart)(exponent == 0u), subnormal, normal);
  return (FloatPart)(sign | select_part((SignedPart)(exponent == 0x0f800000u), special, finite));
#endif
}

PRECAST_CONVERSION HalfPart f16_of_float(FloatPart value) {
#if PRECAST_WIDTH > 4
  HalfPart result;
  asm("vcvtps2ph $0, %1, %0" : "=v"(result) : "v"(value));  // 0: to nearest, ties to even
  return result;
#else
  WordPart bits = (WordPart)value;
  WordPart sign = (bits >> 16) & 0x8000u;
  WordPart magnitude = bits & 0x7fffffffu;
  // Normal result: rebias, round to nearest even on the 13 bits that go. Values from 65520 on carry into infinity.
  WordPart normal = (magnitude + (((magnitude >> 13) & 1u) + 0xfffu - (112u << 23))) >> 13;
  // Subnormal result: adding 0.5 lets the float adder round at the right place.
  FloatPart half = (FloatPart)(WordPart{} + 0x3f000000u);
  WordPart subnormal = (WordPart)((FloatPart)magnitude + half) - 0x3f000000u;
  WordPart nan = ((magnitude >> 13) & 0x3ffu) | 0x7e00u;
  WordPart result = select_part((SignedPart)magnitude < 0x38800000, subnormal, normal);
  result = select_part((SignedPart)magnitude >= 0x47800000, WordPart{} + 0x7c00u, result);
  result = select_part((SignedPart)(value != value), nan, result);
  return narrow(sign | result);
#endif
}

// ---- Sixteen lanes --------------------------------------------------------------------------------------------------

PRECAST_INLINE Floats broadcast(float value) {
#define PRECAST_PART(i) (value - FloatPart{})  // minus: a negative zero keeps its sign
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats operator+(Floats a, Floats b) {
#define PRECAST_PART(i) a.part[i] + b.part[i]
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats operator-(Floats a, Floats b) {
#define PRECAST_PART(i) a.part[i] - b.part[i]
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats operator*(Floats a, Floats b) {
#define PRECAST_PART(i) a.part[i] * b.part[i]
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats operator/(Floats a, Floats b) {
#define PRECAST_PART(i) a.part[i] / b.part[i]
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// a * b + c. A product that is added must be written with this, never with * and +: whether a compiler fuses those two
// differs between the levels.
PRECAST_INLINE Floats fma(Floats a, Floats b, Floats c) {
#define PRECAST_PART(i) fma_part(a.part[i], b.part[i], c.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats sqrt(Floats a) {
#define PRECAST_PART(i) sqrt_part(a.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats load(const float* from) {
#define PRECAST_PART(i) load_bits<FloatPart>(from + (i) * PRECAST_WIDTH)
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats load(const bf16* from) {
#define PRECAST_PART(i) float_of_bf16(load_bits<HalfPart>(from + (i) * PRECAST_WIDTH))
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats load(const f16* from) {
#define PRECAST_PART(i) float_of_f16(load_bits<HalfPart>(from + (i) * PRECAST_WIDTH))
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// Sixteen elements in their storage format, ready to be stored.
struct Halves {
  HalfPart part[kLanes / PRECAST_WIDTH];
};

PRECAST_INLINE Floats pack(Floats value, const float*) { return value; }

PRECAST_INLINE Halves pack(Floats value, const bf16*) {
#define PRECAST_PART(i) bf16_of_float(value.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Halves pack(Floats value, const f16*) {
#define PRECAST_PART(i) f16_of_float(value.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

template <class T>
PRECAST_INLINE void store(T* to, Floats value) {
  auto packed = pack(value, to);
#define PRECAST_PART(i) store_bits(to + (i) * PRECAST_WIDTH, packed.part[i])
  PRECAST_PARTS(PRECAST_PART);
#undef PRECAST_PART
}

// The value as it reads back after a store to T.
PRECAST_INLINE Floats round_to(Floats value, const float*) { return value; }

PRECAST_INLINE Floats round_to(Floats value, const bf16*) {
#define PRECAST_PART(i) float_of_bf16(bf16_of_float(value.part[i]))
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats round_to(Floats value, const f16*) {
#define PRECAST_PART(i) float_of_f16(f16_of_float(value.part[i]))
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// The first `count` < 16 elements; the other lanes are zero, and no byte behind them is touched.
template <class T>
PRECAST_RARE Floats load_part(const T* from, int64_t count) {
  T lane[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lane[i] = from[i];
  return load(static_cast<const T*>(lane));
}

template <class T>
PRECAST_RARE void store_part(T* to, Floats value, int64_t count) {
  T lane[kLanes];
  store(lane, value);
  for (int64_t i = 0; i < count; ++i) to[i] = lane[i];
}

// The sum of the lanes by halving, in one fixed order.
PRECAST_INLINE float sum(Floats a) {
  float lane[kLanes];
  store(lane, a);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

// Without the call into libm that the compiler's own square root brings along for negative numbers.
PRECAST_INLINE double sqrt(double value) {
#if defined(__aarch64__)
  return vgetq_lane_f64(vsqrtq_f64(vdupq_n_f64(value)), 0);
#elif PRECAST_WIDTH > 4
  asm("vsqrtsd %1, %1, %0" : "=v"(value) : "v"(value));
  return value;
#else
  asm("sqrtsd %1, %0" : "=x"(value) : "x"(value));
  return value;
#endif
}

// ---- Stores past the caches -----------------------------------------------------------------------------------------

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
  store_bits(to, part);
#endif
}

// Stores without reading the line first. The address must be a multiple of what is written: 64 bytes of floats, 32 of
// halves. Whole 64-byte lines should follow one another; stream_end() comes after the last one.
template <class T>
PRECAST_INLINE void stream(T* to, Floats value) {
  auto packed = pack(value, to);
#define PRECAST_PART(i) stream_part(to + (i) * PRECAST_WIDTH, packed.part[i])
  PRECAST_PARTS(PRECAST_PART);
#undef PRECAST_PART
}

PRECAST_INLINE void stream_end() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#endif
}

}  // namespace precast::PRECAST_CPU_LEVEL
