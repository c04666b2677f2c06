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
  uint32_t rows;     // in a block; more than one only where a row has one warp or less
  uint32_t vectors;  // of 16 bytes in a row that are moved as such
};

// How many vectors a row of so many bytes holds if everything is aligned to 16 bytes, else 0.
inline int64_t vectors_of(uint64_t misaligned, int64_t row_bytes) {
  return misaligned == 0 && row_bytes < (int64_t{1} << 32) ? row_bytes / 16 : 0;
}

// How many vectors a row may touch that begins anywhere, if it has 16 bytes or more; else 0.
inline int64_t shifted_vectors(int64_t row_bytes, int64_t element_bytes) {
  return row_bytes >= 16 && row_bytes < (int64_t{1} << 31) ? (row_bytes + 15 + 16 - element_bytes) / 16 : 0;
}

// Where rows lie, from one to the next in bytes.
struct Placed {
  const void* data;
  int64_t stride;
};

// Whether each row of one begins as far behind a multiple of 16 bytes as that of the other.
inline bool lies_alike(const Placed& a, const Placed& b) {
  const uint64_t begin = reinterpret_cast<uint64_t>(a.data) - reinterpret_cast<uint64_t>(b.data);
  return ((begin | static_cast<uint64_t>(a.stride - b.stride)) & 15) == 0;
}

// A row of which so many lanes of a warp have `each` vectors; the others have other rows.
inline RowKernel narrow(int kernel, int64_t vectors, int64_t each) {
  const uint32_t lanes = lanes_for(vectors, each);
  return {kernel, lanes, 128 / lanes, static_cast<uint32_t>(vectors)};
}

// A row of up to 128 vectors that one warp has by itself.
inline RowKernel by_warps(int kernel, int64_t vectors) {
  return {kernel, 32, vectors <= 64 ? 4u : 2u, static_cast<uint32_t>(vectors)};
}

// A kernel that holds a row in registers, `each` vectors in a thread; rows of up to `narrow_to` share a warp.
inline RowKernel in_registers(int kernel, int64_t vectors, int64_t each, int64_t narrow_to = 32) {
  if (vectors <= narrow_to) return narrow(kernel, vectors, vectors <= 8 ? 2 : each);
  if (vectors <= 128) return by_warps(kernel, vectors);
  return {kernel, warps_for((vectors + each - 1) / each), 1, static_cast<uint32_t>(vectors)};
}

// A kernel for any row: four elements, or one vector, in each thread at a time.
inline RowKernel for_any_row(int kernel, int64_t columns, int64_t vectors) {
  const int64_t steps = vectors > 0 ? vectors : (columns + 3) / 4;
  const uint32_t threads = steps < 512 ? warps_for(steps) : 512;
  return {kernel, threads, threads == 32 ? 4u : 1u, static_cast<uint32_t>(vectors)};
}

// How many rows ahead of the row in work the L2 cache is asked for another, `bytes` of it: 2 to 4 MB is the plateau.
inline unsigned rows_ahead(int64_t bytes) {
  if (bytes < 512) return 0;
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
