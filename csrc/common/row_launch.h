// Launches of row-wise kernels: how many threads share a row, and the launches that cover all rows.
#pragma once

#include <stdint.h>

#include "launch.h"
#include "rows.h"

namespace precast {

// A kernel, as an index among those of its dtype, and how it divides rows.
struct RowKernel {
  int kernel;
  uint32_t threads;  // per row
  uint32_t rows;     // per block; more than one only if a row takes one warp or less
  uint32_t vectors;  // 16-byte vectors in a row that are loaded as such
};

// Number of 16-byte vectors in a row if everything is aligned to 16 bytes, else 0.
inline int64_t vectors_of(uint64_t misaligned, int64_t row_bytes) {
  return misaligned == 0 && row_bytes < (int64_t{1} << 32) ? row_bytes / 16 : 0;
}

// The most vectors that a row at any address can touch; 0 if the row has less than 16 bytes.
inline int64_t shifted_vectors(int64_t row_bytes, int64_t element_bytes) {
  return row_bytes >= 16 && row_bytes < (int64_t{1} << 31) ? (row_bytes + 15 + 16 - element_bytes) / 16 : 0;
}

// Start of the rows, and the distance between rows in bytes.
struct Placed {
  const void* data;
  int64_t stride;
};

// True if both tensors have the same misalignment to 16 bytes in every row.
inline bool lies_alike(const Placed& a, const Placed& b) {
  const uint64_t begin = reinterpret_cast<uint64_t>(a.data) - reinterpret_cast<uint64_t>(b.data);
  return ((begin | static_cast<uint64_t>(a.stride - b.stride)) & 15) == 0;
}

// Rows narrower than a warp: some lanes share a row, with `each` vectors per lane; the other lanes have other rows.
inline RowKernel narrow(int kernel, int64_t vectors, int64_t each) {
  const uint32_t lanes = lanes_for(vectors, each);
  return {kernel, lanes, 128 / lanes, static_cast<uint32_t>(vectors)};
}

// Rows of up to 128 vectors, each handled by one warp.
inline RowKernel by_warps(int kernel, int64_t vectors) {
  return {kernel, 32, vectors <= 64 ? 4u : 2u, static_cast<uint32_t>(vectors)};
}

// A kernel that keeps a row in registers, `each` vectors per thread. Rows of up to `narrow_to` vectors share a warp.
inline RowKernel in_registers(int kernel, int64_t vectors, int64_t each, int64_t narrow_to = 32) {
  if (vectors <= narrow_to) return narrow(kernel, vectors, vectors <= 8 ? 2 : each);
  if (vectors <= 128) return by_warps(kernel, vectors);
  return {kernel, warps_for((vectors + each - 1) / each), 1, static_cast<uint32_t>(vectors)};
}

// A kernel for any row. Each thread takes four elements, or one vector, at a time.
inline RowKernel for_any_row(int kernel, int64_t columns, int64_t vectors) {
  const int64_t steps = vectors > 0 ? vectors : (columns + 3) / 4;
  const uint32_t threads = steps < 512 ? warps_for(steps) : 512;
  return {kernel, threads, threads == 32 ? 4u : 1u, static_cast<uint32_t>(vectors)};
}

// How many rows ahead to prefetch into the L2 cache, at `bytes` per row. The optimum is a plateau from 2 to 4 MB.
inline unsigned rows_ahead(int64_t bytes) {
  if (bytes < 512) return 0;
  const int64_t rows = (int64_t{3} << 20) / (bytes > 0 ? bytes : 1);
  return rows > 0 ? static_cast<unsigned>(rows) : 1;
}

// Maximum rows per launch. A grid is limited to 2^31 - 1 blocks.
constexpr int64_t kLaunchRows = int64_t{1} << 30;

// Calls body(first row, rows, shape) for the launches that cover all rows: one, unless there are very many rows.
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
