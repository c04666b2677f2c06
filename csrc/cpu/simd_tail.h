// The last few elements of a span, in the sixteen lanes of simd.h, which includes this file.
//
// AVX-512 and SVE read and write them with a mask, without a branch. AVX2 reads 32-bit lanes with a mask. It has none
// for 16-bit lanes, and its masked stores are slow on some processors. So stores, and the loads of the other levels, go
// through a buffer, a power of two of bytes at a time. No byte beyond the elements is read or written.
#pragma once

#include "simd.h"

#if PRECAST_SVE_BITS || PRECAST_WIDTH == 16
#define PRECAST_MASKED_TAILS 1
#define PRECAST_TAIL PRECAST_INLINE
#else
#define PRECAST_MASKED_TAILS 0
#define PRECAST_TAIL PRECAST_RARE
#endif

namespace precast::PRECAST_CPU_LEVEL {

// ---- one register: the first `count` lanes, which may be none or more than there are; the others are zero -----------

#if PRECAST_SVE_BITS

PRECAST_INLINE FloatPart load_first(const float* from, int64_t count) {
  return svld1_f32(svwhilelt_b32_s64(0, count), from);
}
PRECAST_INLINE HalfPart load_first_halves(const void* from, int64_t count) {
  return {svld1uh_u32(svwhilelt_b32_s64(0, count), static_cast<const uint16_t*>(from))};
}
PRECAST_INLINE WordPart load_first_words(const void* from, int64_t halves) {
  return svreinterpret_u32_u16(svld1_u16(svwhilelt_b16_s64(0, halves), static_cast<const uint16_t*>(from)));
}
PRECAST_INLINE void store_first(void* to, FloatPart value, int64_t count) {
  svst1_f32(svwhilelt_b32_s64(0, count), static_cast<float*>(to), value);
}
PRECAST_INLINE void store_first(void* to, HalfPart value, int64_t count) {
  svst1h_u32(svwhilelt_b32_s64(0, count), static_cast<uint16_t*>(to), value.word);
}
PRECAST_INLINE void store_first(void* to, WordPart value, int64_t halves) {
  svst1_u16(svwhilelt_b16_s64(0, halves), static_cast<uint16_t*>(to), svreinterpret_u16_u32(value));
}

#elif PRECAST_WIDTH == 16

PRECAST_INLINE uint32_t first_bits(int64_t count) {
  return count >= 32 ? ~uint32_t{0} : count <= 0 ? 0 : (uint32_t{1} << count) - 1;
}

// Tells the compiler which memory an instruction may touch.
struct __attribute__((may_alias)) Line {
  char bytes[64];
};
struct __attribute__((may_alias)) HalfLine {
  char bytes[32];
};

PRECAST_INLINE FloatPart load_first(const float* from, int64_t count) {
  FloatPart value;
  asm("vmovups %1, %0%{%2%}%{z%}"
      : "=v"(value)
      : "m"(*reinterpret_cast<const Line*>(from)), "Yk"(static_cast<uint16_t>(first_bits(count))));
  return value;
}
PRECAST_INLINE HalfPart load_first_halves(const void* from, int64_t count) {
  HalfPart value;
  asm("vmovdqu16 %1, %0%{%2%}%{z%}"
      : "=v"(value)
      : "m"(*static_cast<const HalfLine*>(from)), "Yk"(static_cast<uint16_t>(first_bits(count))));
  return value;
}
PRECAST_INLINE WordPart load_first_words(const void* from, int64_t halves) {
  WordPart value;
  asm("vmovdqu16 %1, %0%{%2%}%{z%}" : "=v"(value) : "m"(*static_cast<const Line*>(from)), "Yk"(first_bits(halves)));
  return value;
}
// "+m": what the mask leaves out is kept.
PRECAST_INLINE void store_first(void* to, FloatPart value, int64_t count) {
  asm("vmovups %1, %0%{%2%}"
      : "+m"(*static_cast<Line*>(to))
      : "v"(value), "Yk"(static_cast<uint16_t>(first_bits(count))));
}
PRECAST_INLINE void store_first(void* to, HalfPart value, int64_t count) {
  asm("vmovdqu16 %1, %0%{%2%}"
      : "+m"(*static_cast<HalfLine*>(to))
      : "v"(value), "Yk"(static_cast<uint16_t>(first_bits(count))));
}
PRECAST_INLINE void store_first(void* to, WordPart value, int64_t halves) {
  asm("vmovdqu16 %1, %0%{%2%}" : "+m"(*static_cast<Line*>(to)) : "v"(value), "Yk"(first_bits(halves)));
}

#endif

// Copies the first `count` elements, fewer than kAll; none if it is negative.
template <int64_t kAll, class T>
PRECAST_INLINE void copy(T* to, const T* from, int64_t count) {
  if (count <= 0) return;
  constexpr uint64_t kBytes = kAll * sizeof(T);
  static_assert(kBytes <= 128, "the pieces are at most 64 bytes");
  const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
  char* out = reinterpret_cast<char*>(to);
  const char* in = reinterpret_cast<const char*>(from);
#define PRECAST_PIECE(size)                               \
  if constexpr ((size) < kBytes && (size) >= sizeof(T)) { \
    if ((bytes & (size)) != 0) {                          \
      __builtin_memcpy(out, in, (size));                  \
      out += (size);                                      \
      in += (size);                                       \
    }                                                     \
  }
  PRECAST_PIECE(64)
  PRECAST_PIECE(32)
  PRECAST_PIECE(16)
  PRECAST_PIECE(8)
  PRECAST_PIECE(4)
  PRECAST_PIECE(2)
  PRECAST_PIECE(1)
#undef PRECAST_PIECE
}

#if !PRECAST_MASKED_TAILS

#if PRECAST_WIDTH == 8

constexpr SignedPart kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7};

PRECAST_INLINE WordPart load_first_bits(const void* from, int64_t words) {
  struct __attribute__((may_alias)) Line {
    char bytes[32];
  };
  WordPart value;
  asm("vpmaskmovd %1, %2, %0"
      : "=x"(value)
      : "m"(*static_cast<const Line*>(from)), "x"(kLaneNumbers < static_cast<int32_t>(words)));
  return value;
}
PRECAST_INLINE FloatPart load_first(const float* from, int64_t count) {
  return (FloatPart)load_first_bits(from, count);
}
PRECAST_INLINE WordPart load_first_words(const void* from, int64_t halves) {
  const int64_t words = halves > 0 ? halves / 2 : 0;
  const WordPart pairs = load_first_bits(from, words);
  if (halves <= 0 || halves % 2 == 0 || words >= PRECAST_WIDTH) return pairs;
  const uint32_t last = static_cast<const uint16_t*>(from)[halves - 1];
  return pairs | ((WordPart)(kLaneNumbers == static_cast<int32_t>(words)) & last);
}
PRECAST_INLINE HalfPart load_first_halves(const void* from, int64_t count) {
  const WordPart words = load_first_words(from, count < PRECAST_WIDTH ? count : PRECAST_WIDTH);
  return load_bits<HalfPart>(&words);
}

#else

template <class Part, class Element>
PRECAST_INLINE Part load_first_of(const Element* from, int64_t count) {
  constexpr int64_t kAll = sizeof(Part) / sizeof(Element);
  if (count >= kAll) return load_bits<Part>(from);
  Element lane[kAll] = {};
  copy<kAll>(lane, from, count);
  return load_bits<Part>(lane);
}
PRECAST_INLINE FloatPart load_first(const float* from, int64_t count) { return load_first_of<FloatPart>(from, count); }
PRECAST_INLINE HalfPart load_first_halves(const void* from, int64_t count) {
  return load_first_of<HalfPart>(static_cast<const uint16_t*>(from), count);
}
PRECAST_INLINE WordPart load_first_words(const void* from, int64_t halves) {
  return load_first_of<WordPart>(static_cast<const uint16_t*>(from), halves);
}

#endif
#endif

// ---- sixteen lanes: the first `count` < 16 elements; the other lanes are zero ---------------------------------------

#if PRECAST_WIDTH == 8
PRECAST_INLINE Floats load_part(const float* from, int64_t count) {
#else
PRECAST_TAIL Floats load_part(const float* from, int64_t count) {
#endif
#define PRECAST_PART(i) load_first(from + (i) * PRECAST_WIDTH, count - (i) * PRECAST_WIDTH)
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_TAIL Floats load_part(const bf16* from, int64_t count) {
#define PRECAST_PART(i) float_of_bf16(load_first_halves(from + (i) * PRECAST_WIDTH, count - (i) * PRECAST_WIDTH))
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_TAIL Floats load_part(const f16* from, int64_t count) {
#define PRECAST_PART(i) float_of_f16(load_first_halves(from + (i) * PRECAST_WIDTH, count - (i) * PRECAST_WIDTH))
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

template <class T>
PRECAST_TAIL void store_part(T* to, Floats value, int64_t count) {
#if PRECAST_MASKED_TAILS
  auto packed = pack(value, to);
#define PRECAST_PART(i) store_first(to + (i) * PRECAST_WIDTH, packed.part[i], count - (i) * PRECAST_WIDTH)
  PRECAST_PARTS(PRECAST_PART);
#undef PRECAST_PART
#else
  T lane[kLanes];
  store(lane, value);
  copy<kLanes>(to, static_cast<const T*>(lane), count);
#endif
}

// Loads sixteen elements, or the first `count` if there are fewer.
template <class T>
PRECAST_INLINE Floats load_upto(const T* from, int64_t count) {
  return count >= kLanes ? load(from) : load_part(from, count);
}

template <class T>
PRECAST_INLINE void store_upto(T* to, Floats value, int64_t count) {
  if (count >= kLanes) {
    store(to, value);
  } else {
    store_part(to, value, count);
  }
}

}  // namespace precast::PRECAST_CPU_LEVEL
