// Kernels that walk over rows and add up what belongs to their columns, the gradients of a norm (norm.cuh, row_simd.h).
// On a GPU: how many workers there are, and what shared memory holds of the rows on their way; a worker is the threads
// that share a row, and a block has all the workers of a multiprocessor. On the CPU: the chunks that take the place of
// workers.
#pragma once

#include <stdint.h>

#include "launch.h"
#include "rows.h"

namespace precast {

// What an entry point with a ring declares; the device may have less.
constexpr int kRingBytes = 224 * 1024;

struct Walk {
  uint32_t vectors;     // of 16 bytes in a row; 0: one element at a time, without a ring
  uint32_t per_thread;  // two or four
  uint32_t threads;     // that share a row
  uint32_t rows;        // workers in a block
  uint32_t stages;      // rows of two tensors that a worker has in shared memory: two or three
  bool late;            // the last of them is asked for after the results of the row at hand, not ahead of its sums
  uint32_t shared_bytes;
  int64_t blocks;  // that a multiprocessor holds at a time
};

// `vectors`: how many a row holds if everything is aligned to 16 bytes, else 0. How much is on its way to a
// multiprocessor decides: with too little it waits, and with too much some run further ahead of the others, which then
// end later. Many workers keep two rows each, the one at hand and one on its way. One or two keep three; two ask for
// the third late, and one does where `late_alone` says so.
inline Walk choose_walk(const Norm& norm, int64_t vectors, bool late_alone) {
  // Threads on a multiprocessor. More, where registers allow 768, were 3 % slower: with two workers of 256 threads the
  // copies ahead are enough, and a third takes its turns at the arithmetic from them.
  constexpr int64_t kResident = 640, kResidentAny = 1024;
  // Threads of a block of the kernel that takes four vectors per thread, which serves the rows that two do not hold.
  constexpr int64_t kMostOfFour = 512;
  // The widest rows, in vectors, of which two workers keep three: 203.7 and 207.7 us became 201.7 and 202.2 at 4096
  // columns of bf16, but 129.2 and 131.1 became 130.9 and 132.0 at 5120 (RMSNorm and LayerNorm).
  constexpr int64_t kMostOfThree = 512;
  const auto workers_of = [](int64_t all, int64_t threads) {
    const int64_t workers = all / threads;
    return workers > 16 ? 16 : workers > 0 ? workers : 1;
  };
  Walk walk = {};
  if (vectors > 0 && vectors <= 4 * kMostOfFour) {
    walk.vectors = static_cast<uint32_t>(vectors);
    walk.per_thread = vectors <= 2 * kResident ? 2 : 4;
    walk.threads = warps_for((vectors + walk.per_thread - 1) / walk.per_thread);
    walk.blocks = 1;
    const int64_t row_bytes = 2 * vectors * 16;
    const int64_t weight_bytes = walk.per_thread == 4 ? vectors * 16 : 0;
    const int64_t fitting = (block_shared_bytes(norm.device) - kStaticSharedBytes - weight_bytes) / row_bytes;
    const int64_t workers = workers_of(kResident, walk.threads), rows = workers < fitting / 2 ? workers : fitting / 2;
    const bool three = fitting >= 3 * rows && (rows == 1 || (rows == 2 && vectors <= kMostOfThree));
    walk.rows = static_cast<uint32_t>(rows);
    walk.stages = three ? 3 : 2;
    walk.late = three && walk.per_thread == 2 && (rows == 2 || late_alone);
    walk.shared_bytes = static_cast<uint32_t>(walk.stages * rows * row_bytes + weight_bytes);
    if (rows > 0) return walk;
  }
  const int64_t steps = (norm.hidden + 3) / 4;
  walk = {};
  walk.threads = steps < 512 ? warps_for(steps) : 512;
  walk.rows = walk.threads == 32 ? 4 : 1;
  walk.blocks = workers_of(kResidentAny, walk.threads) / walk.rows;
  return walk;
}

// The launch of a walk.
struct WalkGrid {
  int64_t blocks;
  int64_t workers;
  int64_t lines;  // of partial sums, for each of the gradients
};

// As many blocks as the device holds at a time, no more than have a row, and no more than fit 64 MB of partial sums for
// so many gradients. It depends on the device, but on nothing that changes between two calls: the result is the same
// every time.
inline WalkGrid walk_grid(const Norm& norm, const Walk& walk, int64_t gradients) {
  const bool ring = walk.vectors > 0;
  const int64_t block_lines = ring ? 1 : walk.rows;
  const int64_t fitting = (int64_t{1} << 24) / (norm.hidden * block_lines * (gradients > 0 ? gradients : 1));
  int64_t blocks = multiprocessors(norm.device) * walk.blocks;
  if (blocks > fitting) blocks = fitting > 0 ? fitting : 1;
  const int64_t with_rows = (norm.rows + walk.rows - 1) / walk.rows;
  if (blocks > with_rows) blocks = with_rows;
  int64_t workers = blocks * walk.rows;
  if (ring) return {blocks, workers, blocks};
  if (workers > norm.rows) workers = norm.rows;  // those beyond would leave their lines as they were
  return {blocks, workers, workers};
}

// Where the entries of a family that walks have the kernel of a walk: for each DType those of two vectors per thread,
// of one element at a time, and of four vectors. Behind them comes the one that adds columns.
inline int walk_entry(const Norm& norm, const Walk& walk) {
  return 3 * static_cast<int>(norm.dtype) + (walk.per_thread == 2 ? 0 : walk.per_thread == 4 ? 2 : 1);
}
constexpr int kColumnsEntry = 9;

inline LaunchShape walk_shape(const Walk& walk, int64_t blocks) {
  return {static_cast<uint32_t>(blocks), 1, walk.threads, walk.rows, walk.shared_bytes};
}

// The launch that adds `columns` columns of each of so many gradients, four in a thread; it starts while the walk ends.
// Its blocks are small enough for all of them to be there at once, up to 8192 columns of two gradients. For narrow rows
// more threads share a column, or there would be few blocks.
inline LaunchShape columns_shape(int64_t columns, int64_t gradients) {
  const uint32_t quads = columns < 1024 ? 2 : 8;
  return {static_cast<uint32_t>((columns + 4 * quads - 1) / (4 * quads)),
          static_cast<uint32_t>(gradients),
          quads,
          512 / quads,
          0,
          true};
}

// ---- the CPU ----

// Cuts rows into chunks, whatever the number of threads, so that it does not enter the result. Returns how many.
inline int64_t cut_into_chunks(int64_t rows, int64_t* chunk_rows) {
  constexpr int64_t kChunks = 64;
  *chunk_rows = rows > kChunks ? (rows + kChunks - 1) / kChunks : 1;
  return (rows + *chunk_rows - 1) / *chunk_rows;
}

// Calls body(begin, end) for parts of the columns, in parallel. In multiples of 16, so that threads do not share a
// cache line.
template <class Body>
void for_columns(const Norm& norm, int64_t chunks, const Body& body) {
  parallel_for(0, (norm.hidden + 15) / 16, grain_rows(16 * (chunks > 0 ? chunks : 1)),
               [&](int64_t begin, int64_t end) { body(begin * 16, end * 16 < norm.hidden ? end * 16 : norm.hidden); });
}

}  // namespace precast
