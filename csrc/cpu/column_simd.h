// Gradients of parameters, which are sums over rows, on the CPU. Compiled once per CPU level, like simd.h.
//
// A chunk of rows is processed a few rows at a time: one step finds what each row needs, the other writes its result
// and adds to the sums, which stay in registers for these rows. Sums over a group of rows are float, sums over groups
// are double: in float, each of many rows would be rounded to the precision of their total.
#pragma once

#include "row_simd.h"

namespace precast::PRECAST_CPU_LEVEL {

constexpr int64_t kGroup = 32;                     // rows whose sums are float
constexpr int64_t kGroupBytes = int64_t{1} << 18;  // of a group whose rows take several turns: it fits in the L2 cache
constexpr int64_t kTile = 2048;                    // columns of a turn

// The rows whose sums are in registers. Rows a multiple of 4096 bytes apart compete for the same few lines of the first
// cache: with eight of them, 512 rows of 2048 floats took 1.9 times as long as with two.
PRECAST_INLINE int64_t rows_together(int64_t row_bytes) {
  return row_bytes % 4096 == 0 ? 2 : row_bytes % 2048 == 0 ? 4 : 8;
}

// Adds the sums over a group, in the order of blocks of T, to a line of doubles.
template <class T>
PRECAST_RARE void add_columns(double* line, const float* sums, int64_t columns, const T* like) {
  for (int64_t i = 0; i < columns; i += kBlock) {
    float lane[kBlock];
    store_block(lane, in_memory_order(load_block(sums + i), like));
    if (i + kBlock <= columns) {
      for (int64_t k = 0; k < kBlock; ++k) line[i + k] += static_cast<double>(lane[k]);
    } else {
      for (int64_t k = 0; i + k < columns; ++k) line[i + k] += static_cast<double>(lane[k]);
    }
  }
}

// Processes the chunks [begin, end). Each has kSums lines of `hidden` in `parts`. open(row) finds what the row needs.
// finish(rows, count, i, span, sums) writes a block of columns for a few rows and adds to the sums. `Rows` is a
// family's BackwardRows.
template <class T, int kSums, class Rows, class Open, class Finish>
PRECAST_INLINE void sum_chunks(const Rows& rows, double* parts, int64_t begin, int64_t end, const Open& open,
                               const Finish& finish) {
  const int64_t hidden = rows.hidden, fitting = kGroupBytes / (2 * hidden * static_cast<int64_t>(sizeof(T)));
  const int64_t most = hidden <= kTile ? kGroup : fitting < 1 ? 1 : smaller(fitting, kGroup);
  const int64_t together = rows_together(hidden * static_cast<int64_t>(sizeof(T)));
  decltype(open(begin)) group[kGroup];
  alignas(64) float sums[kSums][kTile];
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    double* line = parts + chunk * kSums * hidden;
    for (int64_t i = 0; i < kSums * hidden; ++i) line[i] = 0;
    const int64_t stop = smaller((chunk + 1) * rows.chunk_rows, rows.rows);
    for (int64_t row = chunk * rows.chunk_rows; row < stop; row += most) {
      const int64_t count = smaller(most, stop - row);
      for (int64_t tile = 0; tile < hidden; tile += kTile) {
        const int64_t columns = smaller(kTile, hidden - tile);
        for (int k = 0; k < kSums; ++k) {
          for (int64_t i = 0; i < columns; i += kBlock) store_block(sums[k] + i, both(0.0f));
        }
        for (int64_t first = 0; first < count; first += together) {
          const int64_t few = smaller(together, count - first);
          for (int64_t i = first; i < first + few && tile == 0; ++i) group[i] = open(row + i);
          each_block(0, columns, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
            Block here[kSums];
            for (int k = 0; k < kSums; ++k) here[k] = load_block(sums[k] + i);
            finish(group + first, few, tile + i, span, here);
            for (int k = 0; k < kSums; ++k) store_block(sums[k] + i, here[k]);
          });
        }
        for (int k = 0; k < kSums; ++k) {
          add_columns(line + k * hidden + tile, sums[k], columns, static_cast<const T*>(nullptr));
        }
      }
    }
  }
}

// result[c] = round(sum over chunks, in a fixed order, of parts[chunk * stride + c]) for the columns [begin, end).
// Without chunks the result is 0.
template <class T>
PRECAST_RARE void reduce_columns_to(const double* parts, int64_t chunks, int64_t stride, T* result, int64_t begin,
                                    int64_t end) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    double total[kLanes] = {};
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t lane = 0; lane < kLanes; ++lane) total[lane] += parts[chunk * stride + i + lane];
    }
    float rounded[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) rounded[lane] = static_cast<float>(total[lane]);
    store(result + i, load(static_cast<const float*>(rounded)));
  }
  if (i >= end) return;
  float rounded[kLanes] = {};
  for (int64_t lane = 0; lane < end - i; ++lane) {
    double total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += parts[chunk * stride + i + lane];
    rounded[lane] = static_cast<float>(total);
  }
  store_part(result + i, load(static_cast<const float*>(rounded)), end - i);
}

PRECAST_RARE void reduce_columns(const double* parts, int64_t chunks, int64_t stride, void* result, int dtype,
                                 int64_t begin, int64_t end) {
  with_type(dtype, [&](auto zero) {
    reduce_columns_to(parts, chunks, stride, static_cast<decltype(zero)*>(result), begin, end);
  });
}

}  // namespace precast::PRECAST_CPU_LEVEL
