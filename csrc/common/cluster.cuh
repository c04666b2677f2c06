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

constexpr u32 kMostClusterWarps = 8 * 32, kExchangeBytes = 6 * kMostClusterWarps * 4;

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

// Says that this thread has begun. cluster_has_begun() waits until all threads of the cluster have said so; shared
// memory of another block must not be written earlier.
DEVICE void cluster_begins() {
#if PRECAST_ARCH >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

DEVICE void cluster_has_begun() {
#if PRECAST_ARCH >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// A barrier of all threads of the cluster. Their earlier writes to each other's shared memory are visible after it.
DEVICE void cluster_barrier() {
#if PRECAST_ARCH >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// The copies of a row whose addresses are computed at once. For 10.x and newer the compiler has no registers for all.
constexpr int kCopiesAtOnce = PRECAST_ARCH >= 1000 ? 2 : 8;

// Writes a number to the same address in the shared memory of block `rank` of the cluster.
DEVICE void store_in_cluster(float* p, u32 rank, float v) {
#if PRECAST_ARCH >= 900
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(static_cast<u32>(__cvta_generic_to_shared(p))), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(v) : "memory");
#else
  if (rank == 0) *p = v;
#endif
}

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

// Where the blocks of a cluster exchange their warps' numbers: lines of kMostClusterWarps, at the start of shared
// memory.
using Exchange = float[kMostClusterWarps];
DEVICE Exchange* exchange_lines() { return reinterpret_cast<Exchange*>(ring_memory); }

// Broadcasts each warp's numbers to every block of the cluster. `shared` holds them: N lines with one number per warp
// of the cluster. Contains a barrier of the cluster.
template <int N>
DEVICE void share_in_cluster(const float (&v)[N], Exchange* shared) {
  const u32 lane = threadIdx.x & 31, warp = cluster_rank() * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (lane < cluster_blocks()) {
#pragma unroll
    for (int n = 0; n < N; ++n) store_in_cluster(&shared[n][warp], lane, v[n]);
  }
  cluster_barrier();
}

// The sums of N numbers each over all threads of a cluster, returned to each of them. All threads take the warps' sums
// in the same order, so all blocks get the same bits. `shared` must not be written again before another barrier of the
// cluster.
template <int N>
DEVICE void cluster_sums(float (&v)[N], Exchange* shared) {
#pragma unroll
  for (int n = 0; n < N; ++n) v[n] = warp_sum(v[n]);
  share_in_cluster(v, shared);
  const u32 warps = cluster_blocks() * (blockDim.x >> 5);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float sum = 0.0f;
#pragma unroll 1
    for (u32 i = threadIdx.x & 31; i < warps; i += 32) sum += shared[n][i];
    v[n] = warp_sum(sum);
  }
}

// Sums N numbers, each equal in all threads of a block, over the blocks of the cluster. `room` has N lines of one
// number per block, and must not be written again before another barrier of the cluster.
template <int N>
DEVICE void add_blocks(float (&v)[N], float (*room)[8]) {
  if (threadIdx.x < cluster_blocks()) {
#pragma unroll
    for (int n = 0; n < N; ++n) store_in_cluster(&room[n][cluster_rank()], threadIdx.x, v[n]);
  }
  cluster_barrier();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float sum = 0.0f;
#pragma unroll 1
    for (u32 i = 0; i < cluster_blocks(); ++i) sum += room[n][i];
    v[n] = sum;
  }
}

}  // namespace precast
