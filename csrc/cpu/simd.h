// Sixteen floats at a time, at whatever width this translation unit is compiled for.
//
// A family's cpu.cpp is compiled once per CPU level, with -DPRECAST_CPU_LEVEL=<level> and that level's machine flags.
// The vector is always sixteen lanes long (one, two or four registers), so every level adds, multiplies and reduces in
// the same order and rounds the same way. All levels agree bitwise, except x86's baseline, which has no fused
// multiply-add. The last few elements of a span use the same sixteen lanes (simd_tail.h), so a result never depends on
// where a span was cut.
//
// Everything lives in a namespace named after the level, and nothing of the standard library is included. Otherwise the
// linker could keep the AVX-512 copy of a shared function, which would then run on a machine without AVX-512.
#pragma once

#include <stdint.h>

#ifndef PRECAST_CPU_LEVEL
#error "precast: -DPRECAST_CPU_LEVEL=<level> is missing; cpu_level.h lists the levels"
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "precast: the CPU kernels know x86_64 and aarch64 only"
#endif

#include "cpu_level.h"

// Expands f for each register of the sixteen lanes. Constant indices and no loop keep the parts in registers at -O2.
#if PRECAST_WIDTH == 16
#define PRECAST_PARTS(f) f(0)
#elif PRECAST_WIDTH == 8
#define PRECAST_PARTS(f) f(0), f(1)
#else
#define PRECAST_PARTS(f) f(0), f(1), f(2), f(3)
#endif

#if PRECAST_SVE_BITS
#if !defined(__ARM_FEATURE_SVE_BITS) || __ARM_FEATURE_SVE_BITS != PRECAST_SVE_BITS
#error "precast: level sveN needs -march=armv8.2-a+sve -msve-vector-bits=N"
#endif
#elif PRECAST_WIDTH == 16
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "precast: level avx512 needs -mavx512f -mavx512bw -mavx512vl -mavx512dq"
#endif
#elif PRECAST_WIDTH == 8
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "precast: level avx2 needs -mavx2 -mfma -mf16c"
#endif
#endif

// What must be part of the loop that calls it. A level compiled for size has functions instead, half as long together.
#if defined(PRECAST_SMALL)
#define PRECAST_EVERYWHERE
#else
#define PRECAST_EVERYWHERE __attribute__((always_inline))
#endif
#define PRECAST_INLINE static inline PRECAST_EVERYWHERE
#define PRECAST_METHOD inline PRECAST_EVERYWHERE
#define PRECAST_RARE static __attribute__((noinline, unused))

// Before a loop of a constant number of turns: unrolled, so that the vectors it indexes stay in registers.
#if defined(PRECAST_SMALL)
#define PRECAST_UNROLLED
#else
#define PRECAST_UNROLLED _Pragma("GCC unroll 16")
#endif

#if PRECAST_SVE_BITS
#include "simd_sve.h"
#else
#include "simd_gnu.h"
#endif

namespace precast::PRECAST_CPU_LEVEL {

constexpr int kLanes = 16;

// Storage formats. They hold only bits; arithmetic is in float.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// Memory is always accessed one register at a time: a copy of all sixteen lanes would go through the stack.
struct Floats {
  FloatPart part[kLanes / PRECAST_WIDTH];
};

PRECAST_INLINE Floats broadcast(float value) {
#define PRECAST_PART(i) (value - FloatPart{})  // subtracting keeps the sign of a negative zero
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

// a * b + c. Always use it to add a product, never * and +: the levels differ in whether the compiler fuses those two.
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

// The greater and the lesser of two. Both return `a` if either of them is NaN.
PRECAST_INLINE Floats greater(Floats a, Floats b) {
#define PRECAST_PART(i) greater_part(a.part[i], b.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats lesser(Floats a, Floats b) {
#define PRECAST_PART(i) lesser_part(a.part[i], b.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// `yes` where a < b, else `no`, as where one of them is NaN.
PRECAST_INLINE Floats where_less(Floats a, Floats b, Floats yes, Floats no) {
#define PRECAST_PART(i) select(is_less(a.part[i], b.part[i]), yes.part[i], no.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// 1 above zero, -1 below zero. Zero and NaN are unchanged.
PRECAST_INLINE FloatPart sign_part(FloatPart a) {
  const FloatPart zero = {}, one = 1.0f - zero;
  return select(is_less(zero, a), one, select(is_less(a, zero), zero - one, a));
}

PRECAST_INLINE Floats sign(Floats a) {
#define PRECAST_PART(i) sign_part(a.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats load(const float* from) {
#define PRECAST_PART(i) load_floats(from + (i) * PRECAST_WIDTH)
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats lane_numbers() {
  static constexpr float kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(kNumbers);
}

PRECAST_INLINE Floats load(const bf16* from) {
#define PRECAST_PART(i) float_of_bf16(load_halves(from + (i) * PRECAST_WIDTH))
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats load(const f16* from) {
#define PRECAST_PART(i) float_of_f16(load_halves(from + (i) * PRECAST_WIDTH))
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

// The value that a store to T and a load would give back.
PRECAST_INLINE Floats round_to(Floats value, const float*) { return value; }

PRECAST_INLINE Floats round_to(Floats value, const bf16*) {
#define PRECAST_PART(i) (FloatPart)(rounded_to_bf16(value.part[i]) & 0xffff0000u)
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE Floats round_to(Floats value, const f16*) {
#define PRECAST_PART(i) float_of_f16(f16_of_float(value.part[i]))
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// The pairs of thirty-two consecutive elements: `first` has the first element of each pair, `second` the other.
struct Pairs {
  Floats first, second;
};

PRECAST_INLINE Pairs separate(Pairs x) {
#define PRECAST_OF(k) ((k) < kLanes / PRECAST_WIDTH ? x.first : x.second).part[(k) % (kLanes / PRECAST_WIDTH)]
#define PRECAST_PART(i) even_part(PRECAST_OF(2 * (i)), PRECAST_OF(2 * (i) + 1))
  const Floats first = {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
#define PRECAST_PART(i) odd_part(PRECAST_OF(2 * (i)), PRECAST_OF(2 * (i) + 1))
  return {first, {{PRECAST_PARTS(PRECAST_PART)}}};
#undef PRECAST_PART
#undef PRECAST_OF
}

PRECAST_INLINE Pairs join(Pairs x) {
  constexpr int kParts = kLanes / PRECAST_WIDTH;
  // Part k of the result: the lower or the upper halves of two registers, interleaved.
#define PRECAST_ZIP(k)                                                    \
  ((k) % 2 == 0 ? low_part(x.first.part[(k) / 2], x.second.part[(k) / 2]) \
                : high_part(x.first.part[(k) / 2], x.second.part[(k) / 2]))
#define PRECAST_PART(i) PRECAST_ZIP(i)
  const Floats first = {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
#define PRECAST_PART(i) PRECAST_ZIP((i) + kParts)
  return {first, {{PRECAST_PARTS(PRECAST_PART)}}};
#undef PRECAST_PART
#undef PRECAST_ZIP
}

// Lane 2 i is the sum of lanes i and i + 8 of `first`, lane 2 i + 1 that of `second`.
PRECAST_INLINE Floats halves_added(Pairs x) {
#if PRECAST_WIDTH == 16
  return {{low_part(x.first.part[0], x.second.part[0]) + high_part(x.first.part[0], x.second.part[0])}};
#else
  constexpr int kHalf = kLanes / PRECAST_WIDTH / 2;
#define PRECAST_HALF(of, i) (x.of.part[(i) / 2] + x.of.part[(i) / 2 + kHalf])
#define PRECAST_PART(i)                                                     \
  ((i) % 2 == 0 ? low_part(PRECAST_HALF(first, i), PRECAST_HALF(second, i)) \
                : high_part(PRECAST_HALF(first, i), PRECAST_HALF(second, i)))
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
#undef PRECAST_HALF
#endif
}

// Combines the sixteen lanes to one number: lane i with lane i + 8, then i with i + 4, and so on.
template <class Two>
PRECAST_INLINE float folded(Floats a, const Two& two) {
#if PRECAST_WIDTH == 16
  FloatPart all = two(a.part[0], moved_part<8>(a.part[0]));
  all = two(all, moved_part<4>(all));
#elif PRECAST_WIDTH == 8
  FloatPart all = two(a.part[0], a.part[1]);
  all = two(all, moved_part<4>(all));
#else
  FloatPart all = two(two(a.part[0], a.part[2]), two(a.part[1], a.part[3]));
#endif
  all = two(all, moved_part<2>(all));
  return first_lane(two(all, moved_part<1>(all)));
}

PRECAST_BULKY float sum(Floats a) {
  return folded(a, [](FloatPart b, FloatPart c) PRECAST_EVERYWHERE { return b + c; });
}

PRECAST_BULKY float largest_lane(Floats a) {
  return folded(a, [](FloatPart b, FloatPart c) PRECAST_EVERYWHERE { return greater_part(b, c); });
}

// ---- Stores past the caches -----------------------------------------------------------------------------------------

// Stores without reading the cache line first. The address must be aligned to the stored size: 64 bytes for floats, 32
// for halves. Write whole 64-byte lines one after another, and call stream_end() after the last one.
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

// Calls body(T{}) with the element type of a dtype, given as the number of a precast::DType.
template <class Body>
PRECAST_INLINE void with_type(int dtype, const Body& body) {
  if (dtype == 0) {
    body(float{});
  } else if (dtype == 1) {
    body(f16{});
  } else {
    body(bf16{});
  }
}

}  // namespace precast::PRECAST_CPU_LEVEL

#include "simd_tail.h"
