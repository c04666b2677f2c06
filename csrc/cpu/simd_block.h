// Thirty-two elements at a time, as two groups of sixteen lanes (simd.h). Compiled once per CPU level.
#pragma once

#include "simd.h"

namespace precast::PRECAST_CPU_LEVEL {

// Thirty-two consecutive elements in an order that a format can be read in at once: of bfloat16, `first` has those at
// even places and `second` the others, because one shift, or one mask, of a register of pairs gives sixteen floats. Of
// the other formats, `first` has the first sixteen. What is stored as a block is in the order in which it was loaded.
struct Block {
  Floats first, second;
};

constexpr int64_t kBlock = 2 * kLanes;

PRECAST_INLINE Block both(Floats a) { return {a, a}; }
PRECAST_INLINE Block both(float value) { return both(broadcast(value)); }
PRECAST_INLINE Block operator+(Block a, Block b) { return {a.first + b.first, a.second + b.second}; }
PRECAST_INLINE Block operator-(Block a, Block b) { return {a.first - b.first, a.second - b.second}; }
PRECAST_INLINE Block operator*(Block a, Block b) { return {a.first * b.first, a.second * b.second}; }
PRECAST_INLINE Block fma(Block a, Block b, Block c) {
  return {fma(a.first, b.first, c.first), fma(a.second, b.second, c.second)};
}
PRECAST_INLINE Block greater(Block a, Block b) { return {greater(a.first, b.first), greater(a.second, b.second)}; }
PRECAST_INLINE float sum(Block a) { return sum(a.first + a.second); }
PRECAST_INLINE float largest_lane(Block a) { return largest_lane(greater(a.first, a.second)); }

template <class T>
PRECAST_INLINE Block round_to(Block a, const T* like) {
  return {round_to(a.first, like), round_to(a.second, like)};
}

template <class T>
PRECAST_INLINE Block load_block(const T* from) {
  return {load(from), load(from + kLanes)};
}

template <>
PRECAST_METHOD Block load_block<bf16>(const bf16* from) {
#define PRECAST_PART(i) (FloatPart)(load_words(from + (i) * 2 * PRECAST_WIDTH) << 16)
  const Floats first = {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
#define PRECAST_PART(i) (FloatPart)(load_words(from + (i) * 2 * PRECAST_WIDTH) & 0xffff0000u)
  return {first, {{PRECAST_PARTS(PRECAST_PART)}}};
#undef PRECAST_PART
}

template <class T>
PRECAST_INLINE void store_block(T* to, Block value) {
  store(to, value.first);
  store(to + kLanes, value.second);
}

template <>
PRECAST_METHOD void store_block<bf16>(bf16* to, Block value) {
#define PRECAST_PART(i) \
  store_bits(to + (i) * 2 * PRECAST_WIDTH, bf16_pairs_of_floats(value.first.part[i], value.second.part[i]))
  PRECAST_PARTS(PRECAST_PART);
#undef PRECAST_PART
}

// The first `count` < 32 elements; the others are zero. Reads and writes no byte beyond them. The level that is
// compiled for size uses them for whole blocks too.
template <class T>
PRECAST_TAIL Block load_block_part(const T* from, int64_t count) {
  if (count > kLanes) return {load(from), load_part(from + kLanes, count - kLanes)};
  return {load_part(from, count), broadcast(0.0f)};
}

#if PRECAST_WIDTH == 8 && !PRECAST_SVE_BITS
// Four masked loads, which are cheaper than a call.
PRECAST_INLINE Block load_block_part(const float* from, int64_t count) {
  return {load_part(from, count), load_part(from + kLanes, count - kLanes)};
}
#endif

PRECAST_TAIL Block load_block_part(const bf16* from, int64_t count) {
#define PRECAST_PART(i) load_first_words(from + (i) * 2 * PRECAST_WIDTH, count - (i) * 2 * PRECAST_WIDTH)
  const WordPart pairs[] = {PRECAST_PARTS(PRECAST_PART)};
#undef PRECAST_PART
#define PRECAST_PART(i) (FloatPart)(pairs[i] << 16)
  const Floats first = {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
#define PRECAST_PART(i) (FloatPart)(pairs[i] & 0xffff0000u)
  return {first, {{PRECAST_PARTS(PRECAST_PART)}}};
#undef PRECAST_PART
}

template <class T>
PRECAST_TAIL void store_block_part(T* to, Block value, int64_t count) {
#if PRECAST_MASKED_TAILS
  store_upto(to, value.first, count);
  store_upto(to + kLanes, value.second, count - kLanes);
#else
  if (PRECAST_SMALL && count >= kBlock) return store_block(to, value);
  T lane[kBlock];
  store_block(lane, value);
  copy<kBlock>(to, static_cast<const T*>(lane), count);
#endif
}

#if PRECAST_MASKED_TAILS
PRECAST_TAIL void store_block_part(bf16* to, Block value, int64_t count) {
#define PRECAST_PART(i)                                                                                      \
  store_first(to + (i) * 2 * PRECAST_WIDTH, bf16_pairs_of_floats(value.first.part[i], value.second.part[i]), \
              count - (i) * 2 * PRECAST_WIDTH)
  PRECAST_PARTS(PRECAST_PART);
#undef PRECAST_PART
}
#endif

// Loads a block, or the first `count` elements if there are fewer.
template <class T>
PRECAST_INLINE Block load_block_upto(const T* from, int64_t count) {
  return count >= kBlock ? load_block(from) : load_block_part(from, count);
}

template <class T>
PRECAST_INLINE void store_block_upto(T* to, Block value, int64_t count) {
  if (count >= kBlock) {
    store_block(to, value);
  } else {
    store_block_part(to, value, count);
  }
}

}  // namespace precast::PRECAST_CPU_LEVEL
