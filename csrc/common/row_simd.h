// Shared by the row-wise CPU kernels. Compiled once per CPU level, like simd.h.
#pragma once

#include "simd.h"

namespace precast::PRECAST_CPU_LEVEL {

constexpr int64_t kSumBlock = 1024;  // elements whose sum is kept in float

PRECAST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// A block of float32 numbers in the order of a block of T.
template <class T>
PRECAST_INLINE Block in_order_of(Block natural, const T*) {
  return natural;
}
PRECAST_INLINE Block in_order_of(Block natural, const bf16*) {
  const Pairs pairs = separate({natural.first, natural.second});
  return {pairs.first, pairs.second};
}

// float32 parameters of narrower rows. They are read by calls: few models have them, and the loops stay small.
PRECAST_RARE Floats wide_upto(const float* from, int64_t count) { return load_upto(from, count); }

template <class T>
PRECAST_RARE Block wide_block_upto(const float* from, int64_t count, const T* like) {
  return in_order_of(load_block_upto(from, count), like);
}

// A weight or a bias, in the dtype of the rows or in float32. `data` may be null.
template <class T>
struct Columns {
  const void* data;
  bool wide;
  PRECAST_METHOD bool absent() const { return data == nullptr; }
  PRECAST_METHOD Floats upto(int64_t i, int64_t count) const {
    return wide ? wide_upto(static_cast<const float*>(data) + i, count)
                : load_upto(static_cast<const T*>(data) + i, count);
  }
  // The elements from i on, in the order of a block of T.
  PRECAST_METHOD Block block_upto(int64_t i, int64_t count) const {
    const T* narrow = static_cast<const T*>(data);
    return wide ? wide_block_upto(static_cast<const float*>(data) + i, count, narrow)
                : load_block_upto(narrow + i, count);
  }
};

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
PRECAST_INLINE Block beyond(Block z, int64_t count, float value, const T* like) {
  static constexpr uint8_t kMask[2 * kBlock] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  return masked(z, kMask + kBlock - count, value, like);
}

// result[c] = round(sum over chunks, in a fixed order, of parts[chunk * stride + c]) for the columns [begin, end).
// Without chunks the result is 0.
template <class T>
PRECAST_RARE void reduce_columns_to(const double* parts, int64_t chunks, int64_t stride, T* result, int64_t begin,
                                    int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t columns = smaller(kLanes, end - i);
    double total[kLanes] = {};
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t lane = 0; lane < columns; ++lane) total[lane] += parts[chunk * stride + i + lane];
    }
    float rounded[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) rounded[lane] = static_cast<float>(total[lane]);
    store_upto(result + i, load(static_cast<const float*>(rounded)), columns);
  }
}

PRECAST_RARE void reduce_columns(const double* parts, int64_t chunks, int64_t stride, void* result, int dtype,
                                 int64_t begin, int64_t end) {
  with_type(dtype, [&](auto zero) {
    reduce_columns_to(parts, chunks, stride, static_cast<decltype(zero)*>(result), begin, end);
  });
}

// ---- parameter gradients, which are sums over rows ----
// Rows of a chunk are processed in groups that stay in the L2 cache between passes. Sums within a group are float, sums
// over groups double. In float, each of many rows would be rounded to the precision of their total.
constexpr int64_t kGroup = 8;
constexpr int64_t kGroupBytes = int64_t{1} << 19;
constexpr int64_t kColumns = 512;

// Processes `count` rows from `first` on. open(row) prepares what the row's columns need. finish(opened, begin,
// columns, part) writes the columns [begin, begin + columns) of the result and adds to the kSums rows of `part`. `part`
// is then added to `line`.
template <int kSums, class Open, class Finish>
void sum_group(int64_t first, int64_t count, int64_t hidden, double* line, const Open& open, const Finish& finish) {
  decltype(open(first)) group[kGroup];
  for (int64_t i = 0; i < count; ++i) group[i] = open(first + i);
  for (int64_t begin = 0; begin < hidden; begin += kColumns) {
    const int64_t columns = smaller(kColumns, hidden - begin);
    float part[kSums][kColumns] = {};
    for (int64_t i = 0; i < count; ++i) finish(group[i], begin, columns, part);
    for (int64_t sum = 0; sum < kSums; ++sum) {
      for (int64_t i = 0; i < columns; ++i) line[sum * hidden + begin + i] += static_cast<double>(part[sum][i]);
    }
  }
}

// Processes the chunks [begin, end). Each has kSums lines of `hidden` in `parts`. `Rows` is a family's BackwardRows.
template <class T, int kSums, class Rows, class Open, class Finish>
void sum_chunks(const Rows& rows, double* parts, int64_t begin, int64_t end, const Open& open, const Finish& finish) {
  const int64_t fitting = kGroupBytes / (2 * rows.hidden * static_cast<int64_t>(sizeof(T)));
  const int64_t group = fitting < 1 ? 1 : smaller(fitting, kGroup);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    double* line = parts + chunk * kSums * rows.hidden;
    for (int64_t i = 0; i < kSums * rows.hidden; ++i) line[i] = 0;
    const int64_t stop = smaller((chunk + 1) * rows.chunk_rows, rows.rows);
    for (int64_t row = chunk * rows.chunk_rows; row < stop; row += group) {
      sum_group<kSums>(row, smaller(group, stop - row), rows.hidden, line, open, finish);
    }
  }
}

}  // namespace precast::PRECAST_CPU_LEVEL
