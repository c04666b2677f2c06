// What CPU kernels over rows share. Compiled once per CPU level, as simd.h is.
#pragma once

#include "simd.h"

namespace precast::PRECAST_CPU_LEVEL {

constexpr int64_t kSumBlock = 1024;  // elements whose sum is kept in float

PRECAST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// result[c] = round(sum over chunks, in a fixed order, of parts[chunk * stride + c]) for the columns [begin, end). No
// chunk: 0.
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

// ---- gradients of parameters, which are sums over rows ----
// The rows of a chunk are taken in groups that stay in the second-level cache between their passes. A group's sums are
// kept in float, those of all groups in double: in float, each of many rows would be rounded to the size of their sum.
constexpr int64_t kGroup = 8;
constexpr int64_t kGroupBytes = int64_t{1} << 19;
constexpr int64_t kColumns = 512;

// `count` rows from `first` on: open(row) makes what a row's columns need, finish(opened, begin, columns, part) writes
// the columns [begin, begin + columns) of its result and adds to the kSums rows of `part`, which are added to `line`.
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

// The chunks [begin, end), each with kSums lines of `hidden` in `parts`; `Rows` is a family's BackwardRows.
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
