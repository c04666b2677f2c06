// Sorts pairs of a token and an expert by expert.
#pragma once

#include "../gpu/blocks.cuh"
#include "moe.cuh"

namespace precast {
namespace moe {

// A stable sort by expert. Each warp counts the pairs of its part for every bucket: an expert, or none. A sum over
// buckets, warps and blocks gives the first place of each part, and the rank within 32 pairs comes from a ballot.

constexpr u32 kAhead = 4;  // loads in flight

DEVICE u32 bucket_of(const SortArgs& a, u32 pair) { return bucket_at(a.ids, a.id_bytes, a.experts, pair); }

// Calls body(pair, bucket, peers, active) for this warp's part of the block's chunk, with all lanes. `peers` are the
// lanes with the same bucket.
template <class Body>
DEVICE void for_pairs(const SortArgs& a, const Body& body) {
  const u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 chunk = static_cast<u32>(a.chunk), pairs = static_cast<u32>(a.pairs), begin = blockIdx.x * chunk;
  const u32 last = begin + chunk < pairs ? begin + chunk : pairs;
  const u32 part = (chunk + warps * 32 - 1) / (warps * 32) * 32;
  const u32 from = begin + warp * part, to = from + part < last ? from + part : last;
#pragma unroll 1
  for (u32 start = from; start < to; start += 32 * kAhead) {
    u32 bucket[kAhead];
#pragma unroll
    for (u32 i = 0; i < kAhead; ++i) {
      const u32 pair = start + i * 32 + lane;
      bucket[i] = pair < to ? bucket_of(a, pair) : 0xffffffffu;
    }
#pragma unroll
    for (u32 i = 0; i < kAhead; ++i) {
      const u32 peers = __match_any_sync(kAllLanes, bucket[i]);
      body(start + i * 32 + lane, bucket[i], peers, bucket[i] != 0xffffffffu);
    }
  }
}

// A mask of the lanes below this one.
DEVICE u32 lanes_below() { return (1u << (threadIdx.x % 32)) - 1; }

// Counts the block's pairs by warp and bucket.
DEVICE void count_pairs(const SortArgs& a, u32* memory) {
  const u32 buckets = static_cast<u32>(a.experts) + 1, warps = blockDim.x / 32;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < warps * buckets; i += blockDim.x) memory[i] = 0;
  __syncthreads();
  u32* mine = memory + threadIdx.x / 32 * buckets;
  for_pairs(a, [&](u32, u32 bucket, u32 peers, bool active) {
    if (active && (peers & lanes_below()) == 0) mine[bucket] += static_cast<u32>(__popc(peers));
    __syncwarp();
  });
  __syncthreads();
}

// Marks every slot as empty. `sorted` is aligned to 16 bytes.
DEVICE void fill_slots(const SortArgs& a) {
  if (a.sorted == nullptr) return;
  const u32 stride = gridDim.x * blockDim.x, slots = static_cast<u32>(a.slots), none = static_cast<u32>(a.pairs);
  const u32 first = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (u32 vector = first; vector < slots / 4; vector += stride) {
    store(reinterpret_cast<char*>(a.sorted) + static_cast<u64>(vector) * 16, Vector{{none, none, none, none}});
  }
  if (first < slots % 4) a.sorted[slots - 1 - first] = a.pairs;
}

// Computes the first slot of each bucket from the number of its pairs: an expert's slots are padded to whole blocks,
// and pairs without an expert come last. All threads of a block call this; `sums` holds a word per warp.
DEVICE void find_starts(const SortArgs& a, const int* totals, int* starts, u32* sums) {
  const u32 buckets = static_cast<u32>(a.experts) + 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 each = (buckets + blockDim.x - 1) / blockDim.x, size = a.block_size.divisor;
  const auto slots = [&](u32 bucket) {
    return bucket < buckets ? quotient(static_cast<u32>(totals[bucket]) + size - 1, a.block_size) * size : 0u;
  };
  u32 sum = 0;
#pragma unroll 1
  for (u32 i = 0; i < each; ++i) sum += slots(threadIdx.x * each + i);
  u32 through = sum;  // the sum up to this lane
#pragma unroll
  for (u32 distance = 1; distance < 32; distance <<= 1) {
    const u32 before = __shfl_up_sync(kAllLanes, through, distance);
    if (lane >= distance) through += before;
  }
  if (lane == 31) sums[warp] = through;
  __syncthreads();
  u32 start = through - sum;
#pragma unroll 1
  for (u32 i = 0; i < warp; ++i) start += sums[i];
#pragma unroll 1
  for (u32 i = 0; i < each; ++i) {
    const u32 bucket = threadIdx.x * each + i;
    if (bucket < buckets) starts[bucket] = static_cast<int>(start);
    start += slots(bucket);
  }
  __syncthreads();
}

// Writes the results that depend on the starts alone. One block calls this.
DEVICE void write_ends(const SortArgs& a, const int* starts) {
#pragma unroll 1
  for (int expert = static_cast<int>(threadIdx.x); expert < a.experts; expert += static_cast<int>(blockDim.x)) {
    if (a.ends != nullptr) a.ends[expert] = starts[expert + 1];
  }
  if (a.total != nullptr && threadIdx.x == 0) *a.total = starts[a.experts];
}

// The expert of each block of slots: the last one that starts at or before it.
DEVICE void write_experts(const SortArgs& a, const int* starts) {
  if (a.expert_of == nullptr) return;
  const u32 stride = gridDim.x * blockDim.x, blocks = static_cast<u32>(a.slot_blocks);
#pragma unroll 1
  for (u32 block = blockIdx.x * blockDim.x + threadIdx.x; block < blocks; block += stride) {
    const int slot = static_cast<int>(block * a.block_size.divisor);
    int low = 0, high = a.experts;  // starts[low] <= slot, and every start from high on is after it
#pragma unroll 1
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (starts[middle] <= slot) {
        low = middle;
      } else {
        high = middle;
      }
    }
    a.expert_of[block] = slot < starts[a.experts] ? low : 0;
  }
}

// The first of three launches: counts the pairs of each block by bucket.
DEVICE void sort_count(const SortArgs& a) {
  extern __shared__ u32 sort_memory[];
  begin_launch(1);
  const u32 buckets = static_cast<u32>(a.experts) + 1, warps = blockDim.x / 32;
  fill_slots(a);
  count_pairs(a, sort_memory);
#pragma unroll 1
  for (u32 bucket = threadIdx.x; bucket < buckets; bucket += blockDim.x) {
    u32 count = 0;
#pragma unroll 1
    for (u32 warp = 0; warp < warps; ++warp) count += sort_memory[warp * buckets + bucket];
    a.counts[static_cast<i64>(blockIdx.x) * buckets + bucket] = static_cast<int>(count);
  }
}

// The second launch, of one block: turns counts into offsets within each bucket.
DEVICE void sort_scan(const SortArgs& a) {
  __shared__ u32 sums[32];
  begin_launch(1);
  const u32 buckets = static_cast<u32>(a.experts) + 1;
  const u32 blocks = static_cast<u32>((a.pairs + static_cast<i64>(a.chunk) - 1) / a.chunk);
#pragma unroll 1
  for (u32 bucket = threadIdx.x; bucket < buckets; bucket += blockDim.x) {
    int* count = a.counts + bucket;
    int sum = 0;
#pragma unroll 1
    for (u32 block = 0; block < blocks; block += 8) {
      int found[8];
#pragma unroll
      for (u32 i = 0; i < 8; ++i) found[i] = block + i < blocks ? count[static_cast<i64>(block + i) * buckets] : 0;
#pragma unroll
      for (u32 i = 0; i < 8; ++i) {
        if (block + i < blocks) count[static_cast<i64>(block + i) * buckets] = sum;
        sum += found[i];
      }
    }
    a.totals[bucket] = sum;
  }
  __syncthreads();
  find_starts(a, a.totals, a.starts, sums);
  write_ends(a, a.starts);
}

// The third launch, or the only one, of a cluster of blocks: writes the slots.
DEVICE void sort_place(const SortArgs& a) {
  extern __shared__ u32 place_memory[];
  begin_launch(1);
  const u32 buckets = static_cast<u32>(a.experts) + 1, warps = blockDim.x / 32;
  const bool alone = a.counts == nullptr;
  int* totals = reinterpret_cast<int*>(place_memory + warps * buckets);
  int* others = totals + buckets;  // pairs of all blocks, then this block's first slots
  const int* starts = alone ? others + buckets : a.starts;
  if (alone) fill_slots(a);
  count_pairs(a, place_memory);
#pragma unroll 1
  for (u32 bucket = threadIdx.x; bucket < buckets; bucket += blockDim.x) {
    u32 next = 0;
    if (!alone) next = static_cast<u32>(a.counts[static_cast<i64>(blockIdx.x) * buckets + bucket] + starts[bucket]);
#pragma unroll 1
    for (u32 warp = 0; warp < warps; ++warp) {
      const u32 count = place_memory[warp * buckets + bucket];
      place_memory[warp * buckets + bucket] = next;
      next += count;
    }
    if (alone) totals[bucket] = static_cast<int>(next);
  }
  __syncthreads();
  if (alone) {
    const auto sum_blocks = [&](u32 bucket, int blocks) {
      int pairs[kMostSortBlocks], sum = 0;
#pragma unroll
      for (int block = 0; block < kMostSortBlocks; ++block) {
        pairs[block] = block < blocks ? read_from(totals + bucket, block) : 0;
      }
#pragma unroll
      for (int block = 0; block < kMostSortBlocks; ++block) sum += pairs[block];
      return sum;
    };
    wait_for_cluster();
#pragma unroll 1
    for (u32 bucket = threadIdx.x; bucket < buckets; bucket += blockDim.x) {
      others[bucket] = sum_blocks(bucket, static_cast<int>(gridDim.x));
    }
    __syncthreads();
    find_starts(a, others, others + buckets, reinterpret_cast<u32*>(others + 2 * buckets));
    if (blockIdx.x == 0) write_ends(a, starts);
#pragma unroll 1
    for (u32 bucket = threadIdx.x; bucket < buckets; bucket += blockDim.x) {
      others[bucket] = starts[bucket] + sum_blocks(bucket, static_cast<int>(blockIdx.x));
    }
    wait_for_cluster();
  }
  write_experts(a, starts);
  u32* mine = place_memory + threadIdx.x / 32 * buckets;
  for_pairs(a, [&](u32 pair, u32 bucket, u32 peers, bool active) {
    const u32 next = active ? mine[bucket] : 0;
    __syncwarp();
    if (active && (peers & lanes_below()) == 0) mine[bucket] = next + static_cast<u32>(__popc(peers));
    __syncwarp();
    if (!active) return;
    int slot = static_cast<int>(next + static_cast<u32>(__popc(peers & lanes_below())));
    if (alone) slot += others[bucket];
    const bool placed = bucket < buckets - 1;
    if (a.sorted != nullptr && placed) a.sorted[slot] = static_cast<int>(pair);
    if (a.positions != nullptr) a.positions[pair] = placed ? slot : ~slot;
  });
}

}  // namespace moe
}  // namespace precast
