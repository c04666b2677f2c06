// Rows in blocks of thirty-two elements, for the row-wise CPU kernels. Compiled once per CPU level, like simd.h.
#pragma once

#include "simd_block.h"

namespace precast::PRECAST_CPU_LEVEL {

constexpr int64_t kSumBlock = 1024;  // elements whose sum is kept in float

PRECAST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Short rows are processed several at a time, step by step: while one row waits for a sum or a division, the processor
// works on the next. Together they stay in the first cache.
constexpr int64_t kRowsAtOnce = 16;
PRECAST_INLINE int64_t rows_at_once(int64_t columns) {
  const int64_t rows = 1024 / (columns > 0 ? columns : 1);
  return rows < 1 ? 1 : smaller(rows, kRowsAtOnce);
}

// A block of float32 numbers in the order of a block of T, and back.
template <class T>
PRECAST_INLINE Block in_order_of(Block natural, const T*) {
  return natural;
}
PRECAST_INLINE Block in_order_of(Block natural, const bf16*) {
  const Pairs pairs = separate({natural.first, natural.second});
  return {pairs.first, pairs.second};
}
template <class T>
PRECAST_INLINE Block in_memory_order(Block block, const T*) {
  return block;
}
PRECAST_INLINE Block in_memory_order(Block block, const bf16*) {
  const Pairs pairs = join({block.first, block.second});
  return {pairs.first, pairs.second};
}

// `z` with `value` where a byte of the mask is set. The bytes are in the order of memory, as the block's elements were.
template <class T>
PRECAST_INLINE Block masked(Block z, const uint8_t* mask, float value, const T*) {
  const FloatPart other = value - FloatPart{};
#define PRECAST_PART(i) select(is_set(mask + (i) * PRECAST_WIDTH), other, z.first.part[i])
  const Floats first = {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
#define PRECAST_PART(i) select(is_set(mask + kLanes + (i) * PRECAST_WIDTH), other, z.second.part[i])
  return {first, {{PRECAST_PARTS(PRECAST_PART)}}};
#undef PRECAST_PART
}

PRECAST_INLINE Block masked(Block z, const uint8_t* mask, float value, const bf16*) {
  const FloatPart other = value - FloatPart{};
#define PRECAST_PART(i) select(is_even_set(mask + (i) * 2 * PRECAST_WIDTH), other, z.first.part[i])
  const Floats first = {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
#define PRECAST_PART(i) select(is_odd_set(mask + (i) * 2 * PRECAST_WIDTH), other, z.second.part[i])
  return {first, {{PRECAST_PARTS(PRECAST_PART)}}};
#undef PRECAST_PART
}

// `z` with `value` in all elements but the first `count` < 32.
template <class T>
PRECAST_INLINE Block beyond(Block z, int64_t count, float value, const T*) {
  const Floats lane = lane_numbers(), end = broadcast(static_cast<float>(count)), other = broadcast(value);
  return {where_less(lane, end, z.first, other),
          where_less(lane, end - broadcast(static_cast<float>(kLanes)), z.second, other)};
}
PRECAST_INLINE Block beyond(Block z, int64_t count, float value, const bf16*) {
  const Floats lane = lane_numbers(), half = broadcast(0.5f * static_cast<float>(count)), other = broadcast(value);
  return {where_less(lane, half, z.first, other), where_less(lane, half - broadcast(0.5f), z.second, other)};
}

// ---- a row, block by block: each_block calls body(i, Whole) for whole blocks, then body(i, Part) for the rest
// -------- A loop over whole blocks has no call in it. The compiler would keep sums in memory across a call. The level
// that is compiled for size has one loop, whose parts may be whole.

struct Whole {
  template <class T>
  PRECAST_METHOD Block load(const T* from) const {
    return load_block(from);
  }
  template <class T>
  PRECAST_METHOD void store(T* to, Block value) const {
    store_block(to, value);
  }
  // `z` with `value` in the elements beyond the row, of which a whole block has none.
  template <class T>
  PRECAST_METHOD Block beyond(Block z, float, const T*) const {
    return z;
  }
};

struct Part {
  int64_t count;
  template <class T>
  PRECAST_METHOD Block load(const T* from) const {
    return load_block_part(from, count);
  }
  template <class T>
  PRECAST_METHOD void store(T* to, Block value) const {
    store_block_part(to, value, count);
  }
  template <class T>
  PRECAST_METHOD Block beyond(Block z, float value, const T* like) const {
    return ::precast::PRECAST_CPU_LEVEL::beyond(z, count, value, like);
  }
};

template <class Body>
PRECAST_INLINE void each_block(int64_t begin, int64_t end, const Body& body) {
#if PRECAST_SMALL
  for (int64_t i = begin; i < end; i += kBlock) body(i, Part{smaller(end - i, kBlock)});
#else
  int64_t i = begin;
  for (; i + kBlock <= end; i += kBlock) body(i, Whole{});
  if (i < end) body(i, Part{end - i});
#endif
}

template <class T>
PRECAST_INLINE Block wide_block(const float* from, Whole whole, const T* like) {
  return in_order_of(whole.load(from), like);
}
template <class T>
PRECAST_RARE Block wide_block(const float* from, Part part, const T* like) {
  return in_order_of(part.load(from), like);
}

// A weight or a bias, in the dtype of the rows or in float32. `data` may be null.
template <class T>
struct Columns {
  const void* data;
  bool wide;
  PRECAST_METHOD bool absent() const { return data == nullptr; }
  // The elements from i on, in the order of a block of T.
  template <class Span>
  PRECAST_METHOD Block at(int64_t i, Span span) const {
    const T* narrow = static_cast<const T*>(data);
    if (sizeof(T) < sizeof(float) && wide) return wide_block(static_cast<const float*>(data) + i, span, narrow);
    return span.load(narrow + i);
  }
};

}  // namespace precast::PRECAST_CPU_LEVEL
