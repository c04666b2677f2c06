// Kernels that walk over rows and add up what belongs to their columns, the gradients of a norm (norm.cuh, row_simd.h).
// On a GPU: how many workers there are, and what shared memory holds of the rows on their way; a worker is a block, or
// one warp of it where a block holds several rows. On the CPU: the chunks that take the place of workers.
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
  uint32_t rows;        // workers in a block; more than one only where a row has one warp
  uint32_t stages;      // rows of two tensors that a worker has in shared memory: two or three
  uint32_t shared_bytes;
  int64_t workers;  // that a multiprocessor holds at a time, 16 at most
};

// `vectors`: how many a row holds if everything is aligned to 16 bytes, else 0. Workers that share a multiprocessor
// keep two rows, the one at hand and one on its way; a worker that has it to itself keeps three, where they fit. More
// on their way only lets some multiprocessors run further ahead of the others, which then end later.
inline Walk choose_walk(const Norm& norm, int64_t vectors) {
  // Threads on a multiprocessor. More, where registers allow 768, were 3 % slower: with two workers of 256 threads the
  // copies ahead are enough, and a third takes its turns at the arithmetic from them.
  constexpr int64_t kResident = 640, kResidentAny = 1024;
  // Threads of a block of the kernel that takes four vectors per thread, which serves the rows that two do not hold.
  constexpr int64_t kMostOfFour = 512;
  const auto workers_of = [](int64_t all, int64_t threads) {
    const int64_t workers = all / threads;
    return workers > 16 ? 16 : workers > 0 ? workers : 1;
  };
  Walk walk = {};
  if (vectors > 0 && vectors <= 4 * kMostOfFour) {
    walk.per_thread = vectors <= 2 * kResident ? 2 : 4;
    walk.threads = warps_for((vectors + walk.per_thread - 1) / walk.per_thread);
    walk.rows = vectors <= 64 ? 4 : 1;
    walk.workers = workers_of(kResident, walk.threads);
    const int64_t row_bytes = 2 * vectors * 16 * walk.rows;
    const int64_t weight_bytes = walk.per_thread == 4 ? vectors * 16 : 0;
    const int64_t fitting = (block_shared_bytes(norm.device) - kStaticSharedBytes - weight_bytes) / row_bytes;
    walk.stages = fitting < 2 ? 0 : fitting == 2 || walk.workers > 1 ? 2 : 3;
    walk.shared_bytes = static_cast<uint32_t>(walk.stages * row_bytes + weight_bytes);
    walk.vectors = static_cast<uint32_t>(vectors);
    if (walk.stages > 0) return walk;
  }
  const int64_t steps = (norm.hidden + 3) / 4;
  walk = {};
  walk.threads = steps < 512 ? warps_for(steps) : 512;
  walk.rows = walk.threads == 32 ? 4 : 1;
  walk.workers = workers_of(kResidentAny, walk.threads);
  return walk;
}

// As many workers as the device holds at a time, no more than there are rows, and no more than fit 64 MB of partial
// sums, of which each leaves `lines` rows. It depends on the device, but on nothing that changes between two calls: the
// result is the same every time.
inline int64_t worker_count(const Norm& norm, const Walk& walk, int64_t lines) {
  int64_t workers = multiprocessors(norm.device) * walk.workers;
  const int64_t fitting = (int64_t{1} << 24) / (norm.hidden * (lines > 0 ? lines : 1));
  if (workers > fitting) workers = fitting > 0 ? fitting : 1;
  return workers < norm.rows ? workers : norm.rows;
}

// Where the entries of a family that walks have the kernel of a walk: for each DType those of two vectors per thread,
// of one element at a time, and of four vectors. Behind them comes the one that adds columns.
inline int walk_entry(const Norm& norm, const Walk& walk) {
  return 3 * static_cast<int>(norm.dtype) + (walk.per_thread == 2 ? 0 : walk.per_thread == 4 ? 2 : 1);
}
constexpr int kColumnsEntry = 9;

inline LaunchShape walk_shape(const Walk& walk, int64_t workers) {
  return {static_cast<uint32_t>((workers + walk.rows - 1) / walk.rows), 1, walk.threads, walk.rows, walk.shared_bytes};
}

// The launch that adds `columns` columns of each of so many gradients, four in a thread; it starts while the walk ends.
// Narrow rows have many workers, so more threads share a column.
inline LaunchShape columns_shape(int64_t columns, int64_t gradients) {
  const uint32_t quads = columns < 1024 ? 2 : 8;
  return {static_cast<uint32_t>((columns + 4 * quads - 1) / (4 * quads)),
          static_cast<uint32_t>(gradients),
          quads,
          1024 / quads,
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
