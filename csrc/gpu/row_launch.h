// Launches of row-wise kernels: how many threads share a row, and the launches that cover all rows.
#pragma once

#include <stdint.h>

#include "../host/rows.h"
#include "asked_rows.h"
#include "entry_points.h"
#include "launch.h"

namespace precast {

// A kernel, and how it divides rows.
struct RowKernel {
  ByDType kernel;
  uint32_t threads;      // per row
  uint32_t rows;         // per block; more than one only if a row takes one warp or less
  uint32_t vectors;      // 16-byte vectors in a row that are loaded as such
  uint32_t cluster = 0;  // blocks that share a row; 0: the kernel is not for clusters
  uint32_t shared = 0;   // bytes of dynamic shared memory
};

// The most blocks of a cluster on every GPU that has clusters, and the most threads of a block.
constexpr int64_t kMostBlocks = 8, kMostBlockThreads = 1024;

// Threads of a block of a cluster if there are few rows, and vectors of a row from which these take more blocks.
constexpr int64_t kFewThreads = 512, kSpreadVectors = 512;

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
inline RowKernel narrow(ByDType kernel, int64_t vectors, int64_t each) {
  const uint32_t lanes = lanes_for(vectors, each);
  return {kernel, lanes, 128 / lanes, static_cast<uint32_t>(vectors)};
}

// Rows of up to 128 vectors, each handled by one warp.
inline RowKernel by_warps(ByDType kernel, int64_t vectors) {
  return {kernel, 32, vectors <= 64 ? 4u : 2u, static_cast<uint32_t>(vectors)};
}

// Threads on a multiprocessor up to which a launch of few rows takes more threads for each, and the most that then have
// one vector: 64 x 5120 takes 2.5 us with one vector per thread, 2.4 with two.
constexpr int64_t kSpreadThreads = 1024, kSingleThreads = 256;

// A kernel that keeps a row in registers, `each` vectors per thread of up to `most`, or fewer if the launch has few
// rows. A row that a warp can hold keeps to it, for that needs no barrier, and a kernel of eight vectors is made for
// one warp. Rows of up to `narrow_to` vectors share a warp.
inline RowKernel in_registers(ByDType kernel, int64_t rows, int64_t vectors, int64_t each, int64_t most,
                              int64_t narrow_to, int device) {
  const auto threads_of = [&](int64_t some) -> int64_t {
    return vectors <= 128 ? lanes_for(vectors, some) : warps_for((vectors + some - 1) / some);
  };
  const uint32_t asked = asked_rows.threads;
  if (asked != 0) return {kernel, asked, asked < 32 ? 128 / asked : 1, static_cast<uint32_t>(vectors)};
  const int64_t all = kSpreadThreads * multiprocessors(device);
  const auto has_room = [&](int64_t some) {
    const int64_t threads = threads_of(some), limit = vectors <= 128 ? 32 : some == 1 ? kSingleThreads : most;
    return threads <= limit && rows <= all / threads;
  };
  while (each > 1 && each <= 4 && has_room(each / 2)) each /= 2;
  if (vectors <= narrow_to && threads_of(each) <= 32) {
    return narrow(kernel, vectors, vectors <= 8 && each > 1 ? 2 : each);
  }
  if (vectors <= 128) return by_warps(kernel, vectors);
  return {kernel, static_cast<uint32_t>(threads_of(each)), 1, static_cast<uint32_t>(vectors)};
}

// The same with as many threads as hold the row, even if a warp would do.
inline RowKernel spread(ByDType kernel, int64_t vectors, int64_t each) {
  const uint32_t threads = asked_rows.threads != 0 ? asked_rows.threads : warps_for((vectors + each - 1) / each);
  return {kernel, threads, 1, static_cast<uint32_t>(vectors)};
}

// A kernel for any row. Each thread takes four elements, or one vector, at a time.
inline RowKernel for_any_row(ByDType kernel, int64_t columns, int64_t vectors) {
  const int64_t steps = vectors > 0 ? vectors : (columns + 3) / 4;
  const uint32_t threads = steps < 512 ? warps_for(steps) : 512;
  return {kernel, threads, threads == 32 ? 4u : 1u, static_cast<uint32_t>(vectors)};
}

// What the kernels for clusters keep in shared memory before the rows (cluster.cuh), and the most that one may use.
constexpr int64_t kExchangeBytes = 8 * 1024;
constexpr int kMostClusterBytes = 224 * 1024;

// How a kernel for clusters divides rows: up to `each` vectors per thread in registers, and as much in each of
// `buffers` in shared memory. A cluster has the fewest blocks of up to `usual` threads that hold a row, growing by a
// factor of `grow`.
struct ClusterForm {
  int each;
  int buffers;
  int usual;
  int grow;
  bool alone = false;  // a block of more than kFewThreads fills a multiprocessor, for want of registers
};

// A kernel that holds a row in the registers of a cluster of blocks. Zero threads if the row does not fit. Few rows are
// spread over more blocks, of up to 512 threads: two of them fit on a multiprocessor.
inline RowKernel in_cluster(ByDType kernel, int64_t rows, int64_t vectors, const ClusterForm& form, int device) {
  const int64_t each = form.each, all = multiprocessors(device);
  const auto made = [&](int64_t threads, int64_t cluster) -> RowKernel {
    return {kernel,
            static_cast<uint32_t>(threads),
            1,
            static_cast<uint32_t>(vectors),
            static_cast<uint32_t>(cluster),
            static_cast<uint32_t>(kExchangeBytes + form.buffers * threads * each * 16)};
  };
  if (asked_rows.threads != 0 && asked_rows.cluster != 0) return made(asked_rows.threads, asked_rows.cluster);
  const int64_t room = block_shared_bytes(device) - kStaticSharedBytes - kExchangeBytes;
  const int64_t fitting = room / (form.buffers * each * 16) / 32 * 32;
  const int64_t most = fitting < kMostBlockThreads ? fitting : kMostBlockThreads;
  const int64_t usual = most < form.usual ? most : form.usual, few = most < kFewThreads ? most : kFewThreads;
  int64_t cluster = 1;
  while (cluster < kMostBlocks && vectors > cluster * each * usual) cluster *= form.grow;
  if (cluster > kMostBlocks) cluster = kMostBlocks;
  while (2 * cluster <= kMostBlocks && vectors > cluster * kSpreadVectors && 2 * rows * cluster <= all) cluster *= 2;
  // Of few rows, blocks that two of fit on a multiprocessor: clusters of large ones would not all find room at a time.
  // Most have two: on an H200, softmax of 77 x 65024 takes 9.4 us with three blocks for each row, 10.4 with two.
  const int64_t smallest = (vectors + each * few - 1) / (each * few), widest = all + 3 * all / 4;
  const bool spread = rows * cluster <= all;
  if (form.alone && spread && vectors > cluster * each * few && smallest <= kMostBlocks && rows * smallest <= widest) {
    cluster = widest / rows < kMostBlocks ? widest / rows : kMostBlocks;
  }
  const int64_t in_block = (vectors + cluster - 1) / cluster, fewest = (in_block + each - 1) / each;
  if (fewest > most) return made(0, cluster);
  int64_t taken = each;
  if (spread) taken = (in_block + few - 1) / few;
  const bool many = rows * cluster >= 4 * all;
  if (form.alone && many && fewest > few) {  // as many threads as there is room for
    taken = (in_block + most - 1) / most;
    if (cluster >= 4) return made(most, cluster);  // 224 us instead of 234 at 1024 x 202048, on an H200
  }
  if (taken > each) taken = each;
  return made(warps_for((in_block + taken - 1) / taken), cluster);
}

// Makes a launch of one cluster per row one of as many clusters as the device holds at a time, which walk over the
// rows. Such a launch starts early: its blocks leave no room for early blocks of the next one.
inline void limit_clusters(KernelFamily& family, int device, int entry, LaunchShape& shape) {
  const int resident = resident_clusters(family, device, entry, shape);
  const uint32_t most = static_cast<uint32_t>(resident > 0 ? resident : 1) * shape.cluster;
  if (shape.blocks_x > most) shape.blocks_x = most;
}

// A row of few in a cluster of twice as many blocks as every GPU has, if this one has such clusters for all rows at a
// time. On an H200, softmax of 1 x 128256 takes 3.13 us instead of 3.70, of 5 x 202048 5.54 instead of 5.86.
inline void widen_cluster(KernelFamily& family, int device, int entry, int64_t rows, RowKernel& chosen) {
  constexpr uint32_t kWider = 2 * kMostBlocks, kFrom = kWider * kSpreadVectors;
  if (chosen.cluster != kMostBlocks || chosen.vectors < kFrom || asked_rows.cluster != 0) return;
  if (rows * kWider > multiprocessors(device)) return;
  const int64_t in_block = (chosen.vectors + kWider - 1) / kWider,
                of_thread = (chosen.shared - kExchangeBytes) / chosen.threads;
  const int64_t most = of_thread / 16, spread = (in_block + kFewThreads / 2 - 1) / (kFewThreads / 2);
  const int64_t each = spread < most ? spread : most;
  RowKernel wider = chosen;
  wider.cluster = kWider;
  wider.threads = static_cast<uint32_t>(warps_for((in_block + each - 1) / each));
  wider.shared = static_cast<uint32_t>(kExchangeBytes + of_thread * wider.threads);
  LaunchShape shape = {kWider, 1, wider.threads, 1, wider.shared};
  shape.cluster = kWider;
  if (resident_clusters(family, device, entry, shape) >= rows) chosen = wider;
}

// True if a launch should start while the previous one still runs, and let the next one start early. It has at most
// `threads` per multiprocessor, so that about all of its blocks are resident at a time: many small blocks of a large
// launch would only take turns with those of the launch before.
inline bool starts_early(const LaunchShape& shape, int device, int64_t threads = 2048) {
  if (asked_rows.early >= 0) return asked_rows.early != 0;
  const int64_t blocks = int64_t{shape.blocks_x} * shape.blocks_y;
  return blocks * shape.threads_x * shape.threads_y <= threads * multiprocessors(device);
}

// How many rows ahead to prefetch into the L2 cache, at `bytes` per row. The optimum is a plateau from 2 to 4 MB.
inline unsigned rows_ahead(int64_t bytes) {
  if (bytes < 512) return 0;
  const int64_t rows = (int64_t{3} << 20) / (bytes > 0 ? bytes : 1);
  return rows > 0 ? static_cast<unsigned>(rows) : 1;
}

// Maximum rows per launch. A grid is limited to 2^31 - 1 blocks; rows so wide that a cluster shares them are fewer.
constexpr int64_t kLaunchRows = int64_t{1} << 30;

// Calls body(first row, rows, shape) for the launches that cover all rows: one, unless there are very many rows.
template <class Body>
void for_launches(int64_t rows, const RowKernel& chosen, const Body& body) {
  const uint32_t blocks = chosen.cluster > 0 ? chosen.cluster : 1;  // per row, or per group of rows
  const int64_t most = kLaunchRows / blocks;
  for (int64_t begin = 0; begin < rows; begin += most) {
    const int64_t count = rows - begin < most ? rows - begin : most;
    LaunchShape shape = {static_cast<uint32_t>((count + chosen.rows - 1) / chosen.rows * blocks), 1, chosen.threads,
                         chosen.rows, chosen.shared};
    shape.cluster = blocks;
    body(begin, static_cast<unsigned>(count), shape);
  }
}

}  // namespace precast
