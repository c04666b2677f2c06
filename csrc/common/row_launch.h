// Kernels that compute row by row: how many threads share a row, and the launches that serve all rows.
#pragma once

#include <stdint.h>

#include "launch.h"
#include "rows.h"

namespace precast {

// One of a family's kernels, by its place among those of a dtype, and how it takes rows.
struct RowKernel {
  int kernel;
  uint32_t threads;  // that share a row
  uint32_t rows;     // in a block; more than one only where a row has one warp
  uint32_t vectors;  // of 16 bytes in a row that are moved as such
};

// How many vectors a row of so many bytes holds if everything is aligned to 16 bytes, else 0.
inline int64_t vectors_of(uint64_t misaligned, int64_t row_bytes) {
  return misaligned == 0 && row_bytes < (int64_t{1} << 32) ? row_bytes / 16 : 0;
}

// A kernel that holds a row in registers, `each` vectors in a thread; one warp has a row of up to 128 by itself.
inline RowKernel in_registers(int kernel, int64_t vectors, int64_t each) {
  const uint32_t count = static_cast<uint32_t>(vectors);
  if (vectors <= 128) return {kernel, 32, vectors <= 64 ? 4u : 2u, count};
  return {kernel, warps_for((vectors + each - 1) / each), 1, count};
}

// A kernel for any row: four elements, or one vector, in each thread at a time.
inline RowKernel for_any_row(int kernel, int64_t columns, int64_t vectors) {
  const int64_t steps = vectors > 0 ? vectors : (columns + 3) / 4;
  const uint32_t threads = steps < 512 ? warps_for(steps) : 512;
  return {kernel, threads, threads == 32 ? 4u : 1u, static_cast<uint32_t>(vectors)};
}

// How many rows ahead of the row in work the L2 cache is asked for another, `bytes` of it: 2 to 4 MB is the plateau.
inline unsigned rows_ahead(int64_t bytes) {
  const int64_t rows = (int64_t{3} << 20) / (bytes > 0 ? bytes : 1);
  return rows > 0 ? static_cast<unsigned>(rows) : 1;
}

// The most rows of one launch; the grid is limited to 2^31 - 1 blocks.
constexpr int64_t kLaunchRows = int64_t{1} << 30;

// Calls body(first row, rows, shape) for the launches that serve all rows: one, unless there are very many.
template <class Body>
void for_launches(int64_t rows, const RowKernel& chosen, const Body& body) {
  for (int64_t begin = 0; begin < rows; begin += kLaunchRows) {
    const int64_t count = rows - begin < kLaunchRows ? rows - begin : kLaunchRows;
    const LaunchShape shape = {static_cast<uint32_t>((count + chosen.rows - 1) / chosen.rows), 1, chosen.threads,
                               chosen.rows, 0};
    body(begin, static_cast<unsigned>(count), shape);
  }
}

}  // namespace precast
