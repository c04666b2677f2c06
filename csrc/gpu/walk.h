// Kernels that walk over rows and sum by column, as the gradients of a norm do (walk.cuh, column_simd.h). On a GPU,
// this file chooses the number of workers and the rows that shared memory holds in flight. A worker is a block, or one
// warp of a block that holds several rows. On the CPU, chunks take the place of workers.
#pragma once

#include <stdint.h>

#include "entry_points.h"
#include "row_launch.h"

namespace precast {

// Shared memory that an entry point with a ring declares. The device may have less.
constexpr int kRingBytes = 224 * 1024;

// Each thread of the kernel has its own Walk (walk.cuh).
struct WalkPlan {
  uint32_t vectors;     // of 16 bytes in a row; 0: element by element, without a ring
  uint32_t per_thread;  // one, two or four
  uint32_t threads;     // per row
  uint32_t rows;        // workers in a block; more than one only if a row takes at most one warp
  uint32_t stages;      // rows of two tensors that a worker keeps in shared memory: two or three
  bool pair;            // the next row's copy starts before the wait for this row, not once this row is in registers
  uint32_t shared_bytes;
  int64_t blocks;    // per multiprocessor at a time
  uint32_t cluster;  // blocks that are one worker together; 0 or 1: a block or less is a worker
  uint32_t slice;    // vectors of a row that each of them has
  uint32_t period;   // 0, or rows begin anywhere and every so many of them at the same offset from a multiple of 16
};

// A plan for rows of more vectors than a block can hold: a cluster of blocks is a worker. A block of 256 threads, with
// four vectors each, leaves room for a second one on the multiprocessor, which computes while the other waits for its
// cluster. `vectors` is zero in the plan if even the largest cluster cannot hold the row.
inline WalkPlan cluster_walk(const Norm& norm, int64_t vectors, int64_t cluster = 1) {
  constexpr int64_t kEach = 4, kPairThreads = 256, kMostThreads = 512;
  WalkPlan walk = {};
  while (cluster < kMostBlocks && vectors > cluster * kEach * kPairThreads) cluster *= 2;
  const int64_t slice = (vectors + cluster - 1) / cluster;
  if (slice > kEach * kMostThreads) return walk;
  const int64_t room = block_shared_bytes(norm.device) - kStaticSharedBytes, row_bytes = 2 * slice * 16;
  walk.per_thread = kEach;
  walk.threads = warps_for((slice + kEach - 1) / kEach);
  walk.rows = 1;
  walk.blocks = walk.threads <= kPairThreads ? 2 : 1;
  const int64_t fitting = (room / walk.blocks - slice * 16) / row_bytes;
  if (fitting < 2) return walk;
  walk.stages = fitting >= 3 ? 3 : 2;
  walk.shared_bytes = static_cast<uint32_t>(walk.stages * row_bytes + slice * 16);
  walk.cluster = static_cast<uint32_t>(cluster);
  walk.slice = static_cast<uint32_t>(slice);
  walk.vectors = static_cast<uint32_t>(vectors);
  return walk;
}

// `vectors`: the number of 16-byte vectors in a row if everything is aligned, else 0. The amount of data in flight per
// multiprocessor decides: too little, and it waits; too much, and some workers run ahead of the others, which then
// finish later. Many workers have one row each in flight while they compute, and none once it has arrived. Two workers
// have two rows each in flight while they wait, if rows fit kWidestPair. A single worker does so if `pair_alone` is
// set, else it always has two rows in flight. `shifted`: the most vectors that a row can touch, if the family has a
// kernel for rows that begin anywhere and the first row is aligned, else 0. It is code for 9.0 and newer, as is that
// for clusters: for all GPUs it would not fit in a wheel.
inline WalkPlan choose_walk(KernelFamily& family, const Norm& norm, int64_t vectors, bool pair_alone,
                            int64_t shifted = 0) {
  const bool mixed = norm.wide_columns;  // served by two vectors per thread, or one element at a time
  // Threads on a multiprocessor. More threads were 3 % slower where registers allow 768: two workers of 256 threads
  // already copy far enough ahead, and a third competes with them for the arithmetic.
  constexpr int64_t kResident = 640, kResidentShifted = 512, kResidentAny = 1024;
  // Threads per block of the kernel with four vectors per thread, which serves rows too wide for two.
  constexpr int64_t kMostOfFour = 512;
  // The widest rows, in vectors, that two workers process in pairs. Pairs changed 203.7 and 207.7 us to 201.7 and 202.2
  // at 4096 columns of bf16, but 129.2 and 131.1 to 130.9 and 132.0 at 5120 (RMSNorm and LayerNorm).
  constexpr int64_t kWidestPair = 512;
  // The widest rows, in vectors, with one vector per lane, so that most warps have several rows; and the threads per
  // block.
  constexpr int64_t kNarrow = 32, kNarrowThreads = 512;
  const auto workers_of = [](int64_t all, int64_t threads) {
    const int64_t workers = all / threads;
    return workers > 16 ? 16 : workers > 0 ? workers : 1;
  };
  WalkPlan walk = {};
  if (asked_rows.cluster > 1 && !mixed && vectors > 0) return cluster_walk(norm, vectors, asked_rows.cluster);
  if (!mixed && vectors > 0 && vectors <= kNarrow) {
    walk.vectors = static_cast<uint32_t>(vectors);
    walk.per_thread = 1;
    walk.threads = lanes_for(vectors, 1);
    walk.rows = static_cast<uint32_t>(kNarrowThreads / walk.threads);
    walk.blocks = 2;
    walk.stages = 2;
    walk.shared_bytes = static_cast<uint32_t>(walk.stages * walk.rows * 2 * vectors * 16);
    return walk;
  }
  if (vectors > 0 && vectors <= (mixed ? 2 * kResident : 4 * kMostOfFour)) {
    walk.vectors = static_cast<uint32_t>(vectors);
    walk.per_thread = vectors <= 2 * kResident ? 2 : 4;
    walk.threads = warps_for((vectors + walk.per_thread - 1) / walk.per_thread);
    const int64_t workers = workers_of(kResident, walk.threads);
    const int64_t row_bytes = 2 * vectors * 16;
    const int64_t weight_bytes = walk.per_thread == 4 ? vectors * 16 : 0;
    const int64_t fitting = (block_shared_bytes(norm.device) - kStaticSharedBytes - weight_bytes) / row_bytes;
    const int64_t rows = walk.threads > 32 ? 1 : workers < fitting / 2 ? workers : fitting / 2;
    walk.rows = static_cast<uint32_t>(rows);
    walk.blocks = walk.threads > 32 ? workers : 1;
    walk.pair = walk.per_thread == 2 && (workers == 2 ? vectors <= kWidestPair : workers == 1 && pair_alone);
    walk.stages = fitting < 2 ? 0 : workers == 1 && !walk.pair && fitting >= 3 ? 3 : 2;
    walk.shared_bytes = static_cast<uint32_t>(walk.stages * rows * row_bytes + weight_bytes);
    if (walk.stages > 0) return walk;
  }
  if (!mixed && vectors > 0 && has_clusters(family, norm.device)) {
    walk = cluster_walk(norm, vectors);
    if (walk.vectors > 0) return walk;
  }
  if (vectors == 0 && shifted > 0 && shifted <= 2 * kResidentShifted && has_clusters(family, norm.device)) {
    walk = {};
    walk.vectors = static_cast<uint32_t>(shifted);
    walk.per_thread = 2;
    walk.threads = warps_for((shifted + 1) / 2);
    const int64_t workers = workers_of(kResidentShifted, walk.threads), row_bytes = 2 * shifted * 16;
    const int64_t fitting = (block_shared_bytes(norm.device) - kStaticSharedBytes) / row_bytes / workers;
    walk.rows = walk.threads > 32 ? 1 : 8;
    walk.blocks = workers / walk.rows;
    walk.stages = fitting >= 3 ? 3 : 2;
    walk.shared_bytes = static_cast<uint32_t>(walk.stages * walk.rows * row_bytes);
    walk.period = static_cast<uint32_t>(16 / norm.element_bytes());
    // A worker with one row would take longer to load its weight than to read the row one element at a time.
    if (fitting >= 2 && norm.rows > walk.blocks * walk.rows * multiprocessors(norm.device)) return walk;
  }
  const int64_t steps = (norm.hidden + 3) / 4;
  walk = {};
  walk.threads = steps < 512 ? warps_for(steps) : 512;
  walk.rows = walk.threads == 32 ? 4 : 1;
  walk.blocks = workers_of(kResidentAny, walk.threads) / walk.rows;
  return walk;
}

// The kernels of a family that walks: two vectors per thread, two in pairs, four, one, four in a cluster of blocks, one
// element at a time, and two vectors of rows that begin anywhere, if the family has that.
struct WalkKernels {
  ByDType v2, v2_pair, v4, v1, wide, any, shifted = kNoEntry;
};

inline int walk_entry(const WalkKernels& kernels, const Norm& norm, const WalkPlan& walk) {
  const ByDType& kernel = walk.cluster > 1       ? kernels.wide
                          : walk.period > 0      ? kernels.shifted
                          : walk.pair            ? kernels.v2_pair
                          : walk.per_thread == 1 ? kernels.v1
                          : walk.per_thread == 2 ? kernels.v2
                          : walk.per_thread == 4 ? kernels.v4
                                                 : kernels.any;
  return kernel[norm.dtype];
}

// `blocks`: or clusters, if a cluster is a worker.
inline LaunchShape walk_shape(const WalkPlan& walk, int64_t blocks) {
  LaunchShape shape = {static_cast<uint32_t>(blocks), 1, walk.threads, walk.rows, walk.shared_bytes};
  if (walk.cluster > 1) {
    shape.cluster = walk.cluster;
    shape.blocks_x *= walk.cluster;
  }
  return shape;
}

// The launch of a walk.
struct WalkGrid {
  int64_t blocks;
  int64_t workers;
  int64_t lines;  // of partial sums, per gradient
};

// As many blocks as the device holds at a time, but at most one per row and at most 64 MB of partial sums for all
// gradients. The number depends on the device but not on the call, so the result is the same every time. `entry`: the
// walk's kernel.
inline WalkGrid walk_grid(KernelFamily& family, int entry, const Norm& norm, const WalkPlan& walk, int64_t gradients) {
  const bool ring = walk.vectors > 0;
  const int64_t block_lines = ring ? 1 : walk.rows;
  const int64_t fitting = (int64_t{1} << 24) / (norm.hidden * block_lines * (gradients > 0 ? gradients : 1));
  int64_t blocks = multiprocessors(norm.device) * walk.blocks;
  if (walk.cluster > 1) {  // here blocks are clusters
    const LaunchShape one = walk_shape(walk, 1);
    blocks = resident_clusters(family, norm.device, entry, one);
    if (blocks < 1) blocks = 1;
  }
  if (blocks > fitting) blocks = fitting > 0 ? fitting : 1;
  const int64_t with_rows = (norm.rows + walk.rows - 1) / walk.rows;
  if (blocks > with_rows) blocks = with_rows;
  if (walk.period > 0 && blocks * walk.rows < norm.rows) {  // a worker's rows all begin at the same offset
    const int64_t whole = walk.period > walk.rows ? walk.period / walk.rows : 1;
    blocks = blocks > whole ? blocks / whole * whole : whole;
  }
  int64_t workers = blocks * walk.rows;
  if (ring) return {blocks, workers, blocks};
  if (workers > norm.rows) workers = norm.rows;  // workers beyond the rows would leave their lines unwritten
  return {blocks, workers, workers};
}

// The launch that sums the columns over `lines` lines for each gradient, four columns per thread. It starts while the
// walk ends. A thread reads four lines at once, so a block has enough threads to read all lines at once, unless the
// multiprocessors could not hold all blocks at a time, two each. Narrow rows have few columns and many lines.
inline LaunchShape columns_shape(const Norm& norm, int64_t lines, int64_t gradients) {
  const uint32_t quads = norm.hidden < 1024 ? 2 : norm.hidden < 4096 ? 4 : 8;
  const int64_t blocks = (norm.hidden + 4 * quads - 1) / (4 * quads);
  const bool large = lines > 4 * 512 / quads && blocks * gradients <= 2 * multiprocessors(norm.device);
  const uint32_t threads = large ? 1024 : 512;
  return {static_cast<uint32_t>(blocks), static_cast<uint32_t>(gradients), quads, threads / quads, 0, true};
}

// ---- the CPU ----

// Cuts rows into chunks independently of the number of threads, so that it does not affect the result. Returns their
// number. Each chunk costs a line of sums, so few rows make few chunks, and short rows make long ones.
inline int64_t cut_into_chunks(const Norm& norm, int64_t* chunk_rows) {
  constexpr int64_t kMost = 64, kFew = 16, kLeastRows = 8, kLeastElements = 4096;
  const int64_t few = (norm.rows + kFew - 1) / kFew, many = (norm.rows + kMost - 1) / kMost;
  const int64_t least = norm.hidden * kLeastRows < kLeastElements ? kLeastElements / norm.hidden : kLeastRows;
  *chunk_rows = many > least ? many : few < least ? few : least;
  if (*chunk_rows < 1) *chunk_rows = 1;
  return (norm.rows + *chunk_rows - 1) / *chunk_rows;
}

// Calls body(begin, end) for parts of the columns, in parallel. Parts are multiples of 16, so that threads do not share
// a cache line.
template <class Body>
void for_columns(const Norm& norm, int64_t chunks, const Body& body) {
  constexpr int64_t kColumnsPs = 150;
  parallel_rows((norm.hidden + 15) / 16, 16 * (chunks > 0 ? chunks : 1) * kColumnsPs,
                [&](int64_t begin, int64_t end) { body(begin * 16, end * 16 < norm.hidden ? end * 16 : norm.hidden); });
}

}  // namespace precast
