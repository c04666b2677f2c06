// Rows that a cluster of blocks shares. Each block holds its part of the row in registers, and the blocks exchange sums
// through shared memory. Compute capability 9.0 and newer; elsewhere a kernel behaves as in a cluster of one block.
#pragma once

#include "walk.cuh"

// Kernels for clusters have no body in the images of older GPUs. The host never launches them there.
#if PRECAST_ARCH >= 900 || PRECAST_ARCH == 0
#define PRECAST_HAS_CLUSTERS 1
#else
#define PRECAST_HAS_CLUSTERS 0
#endif

namespace precast {

constexpr u32 kMostClusterWarps = 8 * 32, kMostSets = 4, kExchangeLines = 8;
constexpr u32 kExchangeBytes = kExchangeLines * kMostClusterWarps * 4;

DEVICE u32 cluster_blocks() {
  u32 n = 1;
#if PRECAST_ARCH >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
#endif
  return n;
}

DEVICE u32 cluster_rank() {
  u32 n = 0;
#if PRECAST_ARCH >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
#endif
  return n;
}

DEVICE u32 cluster_number() {
  u32 n = blockIdx.x;
#if PRECAST_ARCH >= 900
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(n));
#endif
  return n;
}

// How many of the numbers that the cluster sends to a block have arrived, for each set of Rounds.
DEVICE u64* arrivals() {
  __shared__ u64 counts[kMostSets];
  return counts;
}

DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Says that this thread has begun. cluster_has_begun() waits until all threads of the cluster have said so; shared
// memory of another block must not be written earlier.
DEVICE void cluster_begins() {
#if PRECAST_ARCH >= 900
  if (threadIdx.x == 0) {
    for (u32 set = 0; set < kMostSets; ++set) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrivals() + set)) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

DEVICE void cluster_has_begun() {
#if PRECAST_ARCH >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// The copies of a row whose addresses are computed at once. For 10.x and newer the compiler has no registers for all.
constexpr int kCopiesAtOnce = PRECAST_ARCH >= 1000 ? 2 : 8;

// A cluster walks over rows: it has the rows `row`, `row` + `clusters`, ... While a row is in registers, the next one
// is copied to shared memory. Every thread copies exactly what it will read, so the copies need no barrier. Shared
// memory has the numbers that blocks exchange, then buffers with a thread's V vectors each: of the rows on their way,
// and of what all rows use.
template <int V>
struct ClusterWalk {
  u32 rank, blocks, row, clusters;
  u32 first, step;  // of this thread's vectors in a row
  u32 vectors;
  u32 slot;  // address of this thread's first vector in the first buffer

  DEVICE explicit ClusterWalk(u32 row_vectors)
      : rank(cluster_rank()),
        blocks(cluster_blocks()),
        row(cluster_number()),
        clusters(gridDim.x / blocks),
        first(rank * blockDim.x + threadIdx.x),
        step(blocks * blockDim.x),
        vectors(row_vectors),
        slot(static_cast<u32>(__cvta_generic_to_shared(ring_memory)) + kExchangeBytes + threadIdx.x * 16) {}

  DEVICE bool has(int j) const { return first + j * step < vectors; }
  DEVICE i64 offset(int j) const { return static_cast<i64>(first + j * step) * 16; }
  DEVICE u32 place(int buffer, int j) const { return slot + (buffer * V + j) * blockDim.x * 16; }

  DEVICE void fetch(int buffer, const char* from) const {
#pragma unroll kCopiesAtOnce
    for (int j = 0; j < V; ++j) {
      if (has(j)) copy(place(buffer, j), from + offset(j));
    }
  }
  DEVICE void take(int buffer, Vector (&v)[V]) const {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (has(j)) v[j] = load_shared(place(buffer, j));
    }
  }
};

// Lines of kMostClusterWarps numbers, at the start of shared memory.
using Exchange = float[kMostClusterWarps];
DEVICE Exchange* exchange_lines() { return reinterpret_cast<Exchange*>(ring_memory); }

// Rounds in which the blocks of a cluster exchange numbers. A number is sent straight to the shared memory of each
// block, which counts what arrives: a barrier of the cluster would first wait for the results of the row before to
// reach memory. Two sets of lines take turns. A block that runs ahead writes to a set in use by nobody: it begins a
// round when all warps have sent their numbers of the last one, and so have read those of the one before. If a round is
// sent before the last one is received, that holds for four sets. A block that has the numbers of its last row may end,
// for nobody sends it more.
template <u32 kSets = 2>
struct Rounds {
  static_assert(kSets == 2 || kSets == kMostSets, "sets take turns by the bits of their round");
  u32 sent = 0, received = 0;

  DEVICE u32 set() const { return sent % kSets; }

  // Sends N numbers to block `rank`, the first to `place` in its shared memory and the others `line` numbers behind.
  template <int N>
  DEVICE void send(const float (&v)[N], float* place, u32 line, u32 rank) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#if PRECAST_ARCH >= 900
      if (cluster_blocks() == 1) {
        place[n * line] = v[n];
        continue;
      }
      asm volatile(
          "{ .reg .u32 there, counts;\n"
          "mapa.shared::cluster.u32 there, %0, %2;\n mapa.shared::cluster.u32 counts, %1, %2;\n"
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [counts]; }" ::"r"(
              shared_address(place + n * line)),
          "r"(shared_address(arrivals() + set())), "r"(rank), "r"(__float_as_uint(v[n]))
          : "memory");
#else
      place[n * line] = v[n];
#endif
    }
  }

  // Waits until so many numbers have arrived in the first round that has not been received.
  DEVICE void wait(u32 numbers) {
    const u32 round = received++;
#if PRECAST_ARCH >= 900
    if (cluster_blocks() == 1) {
      __syncthreads();
      return;
    }
    const u32 counts = shared_address(arrivals() + round % kSets), parity = round / kSets & 1;
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(counts), "r"(numbers * 4) : "memory");
    }
    u32 done = 0;
    while (done == 0) {
      asm volatile(
          "{ .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(counts), "r"(parity)
          : "memory");
    }
#else
    __syncthreads();
#endif
  }

  template <int N>
  static DEVICE Exchange* lines_of(u32 round) {
    static_assert(N * kSets <= kExchangeLines, "there are so many lines");
    return exchange_lines() + N * (round % kSets);
  }

  // Broadcasts the numbers of each warp, which receive() returns as N lines with one number per warp of the cluster.
  template <int N>
  DEVICE void send_warps(const float (&v)[N]) {
    const u32 lane = threadIdx.x & 31, place = cluster_rank() * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (lane < cluster_blocks()) send(v, &lines_of<N>(sent)[0][place], kMostClusterWarps, lane);
    ++sent;
  }
  template <int N>
  DEVICE const Exchange* receive() {
    const Exchange* lines = lines_of<N>(received);
    wait(N * cluster_blocks() * (blockDim.x >> 5));
    return lines;
  }

  // The sums of N numbers each over all threads of a cluster, returned to each of them. All threads take the sums of
  // the warps in the same order, so all blocks get the same bits.
  template <int N>
  DEVICE void sums(float (&v)[N]) {
#pragma unroll
    for (int n = 0; n < N; ++n) v[n] = warp_sum(v[n]);
    send_warps(v);
    const Exchange* lines = receive<N>();
    const u32 warps = cluster_blocks() * (blockDim.x >> 5);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float sum = 0.0f;
#pragma unroll 1
      for (u32 i = threadIdx.x & 31; i < warps; i += 32) sum += lines[n][i];
      v[n] = warp_sum(sum);
    }
  }

  // Sums N numbers, each equal in all threads of a block, over the blocks of the cluster.
  template <int N>
  DEVICE void add_blocks(float (&v)[N]) {
    __shared__ float room[2][N][8];
    float (*const lines)[8] = room[set()];
    const u32 blocks = cluster_blocks();
    if (threadIdx.x < blocks) send(v, &lines[0][cluster_rank()], 8, threadIdx.x);
    ++sent;
    wait(N * blocks);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float sum = 0.0f;
#pragma unroll 1
      for (u32 i = 0; i < blocks; ++i) sum += lines[n][i];
      v[n] = sum;
    }
  }
};

}  // namespace precast
