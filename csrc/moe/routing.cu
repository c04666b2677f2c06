// The choice of experts for tokens, and the places of pairs of a token and an expert. Everything is deterministic: no
// atomics, and every order is fixed.
#include "moe.cuh"

namespace precast {
namespace moe {

// ---- gating: a warp has a token ----
// Lane l works on the experts l, l + 32, l + 64 and so on. Their scores become integers, keys that order like the
// scores.

constexpr float kTiny = 1e-20f;  // added to a sum of sigmoids, as DeepSeek-V3 does

// NaN comes first, then the order of the values. The two zeros are equal. 0 is below every number.
DEVICE u32 key_of(float value) {
  if (value != value) return 0xffffffffu;
  const u32 bits = __float_as_uint(value + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

DEVICE float value_of(u32 key) { return __uint_as_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key); }

// The sigmoid, or exp(x - base).
DEVICE float score_of(float x, bool by_sigmoid, float base) {
  const float power = expf(by_sigmoid ? -x : x - base);
  return by_sigmoid ? 1.0f / (1.0f + power) : power;
}

DEVICE float logit(const char* row, u32 expert, int dtype) {
  if (dtype == 0) return Float32::load(row + expert * 4);
  const char* at = row + expert * 2;
  return dtype == 1 ? Float16::load(at) : BFloat16::load(at);
}

// The word of an expert in shared memory: a word is left out after each 32, so that the threads of a warp find the
// experts of different groups in different banks.
DEVICE u32 word_of(u32 expert) { return expert + expert / 32; }

// Loads the logits of a row and the bias, several at a time, so that only the first of them takes the latency of
// memory.
DEVICE void load_logits(const char* row, const float* bias, u32 lane, u32 experts, int dtype, u32* words, u32* biases) {
  constexpr u32 kTogether = 8;
#pragma unroll 1
  for (u32 first = lane; first < experts; first += 32 * kTogether) {
    u32 bits[kTogether] = {};
    float more[kTogether] = {};
    if (bias != nullptr) {
#pragma unroll
      for (u32 i = 0; i < kTogether; ++i) {
        if (first + 32 * i < experts) more[i] = bias[first + 32 * i];
      }
    }
    if (dtype == 0) {
#pragma unroll
      for (u32 i = 0; i < kTogether; ++i) {
        if (first + 32 * i < experts) bits[i] = reinterpret_cast<const u32*>(row)[first + 32 * i];
      }
    } else {
#pragma unroll
      for (u32 i = 0; i < kTogether; ++i) {
        if (first + 32 * i < experts) bits[i] = reinterpret_cast<const u16*>(row)[first + 32 * i];
      }
    }
#pragma unroll
    for (u32 i = 0; i < kTogether; ++i) {
      if (dtype == 1) bits[i] = __float_as_uint(Float16::widen(static_cast<u16>(bits[i])));
      if (dtype == 2) bits[i] <<= 16;
      if (first + 32 * i >= experts) continue;
      words[word_of(first + 32 * i)] = bits[i];
      biases[first + 32 * i] = __float_as_uint(more[i]);
    }
  }
}

// The number of the lane whose index differs in one bit.
DEVICE u32 other_lane(u32 v, u32 distance) {
  return __float_as_uint(__shfl_xor_sync(kAllLanes, __uint_as_float(v), static_cast<int>(distance)));
}

// Sets the keys of the experts outside of the best groups to 0. Of equal groups, the first is better. `scores` has room
// for two words per group.
DEVICE void keep_groups(const GatingArgs& a, u32* words, u32* scores, u32 lane) {
  const u32 experts = static_cast<u32>(a.experts), groups = static_cast<u32>(a.groups), size = a.group_size.divisor;
  // Up to eight groups have four lanes each, and more of them have one.
  const u32 lanes = groups <= 8 ? 4 : 1, part = lane % lanes;
#pragma unroll 1
  for (u32 base = 0; base < groups; base += 32 / lanes) {
    const u32 g = base + lane / lanes;
    u32 first = 0, second = 0;
#pragma unroll 4
    for (u32 i = part; i < size && g < groups; i += lanes) {
      const u32 next = words[word_of(g * size + i)];
      second = next > first ? first : next > second ? next : second;
      first = next > first ? next : first;
    }
    for (u32 distance = 1; distance < lanes; distance *= 2) {
      const u32 others_first = other_lane(first, distance), others_second = other_lane(second, distance);
      const u32 less = first < others_first ? first : others_first;
      second = second > others_second ? second : others_second;
      second = less > second ? less : second;
      first = first > others_first ? first : others_first;
    }
    const bool both = (a.flags & kTopTwo) != 0 && second != 0;
    if (g < groups && part == 0) scores[g] = both ? key_of(value_of(first) + value_of(second)) : first;
  }
  __syncwarp();
#pragma unroll 1
  for (u32 g = lane; g < groups; g += 32) {
    u32 better = 0;
#pragma unroll 1
    for (u32 other = 0; other < groups; ++other) {
      better += scores[other] > scores[g] || (scores[other] == scores[g] && other < g) ? 1 : 0;
    }
    scores[groups + g] = better < static_cast<u32>(a.kept_groups) ? 1 : 0;
  }
  __syncwarp();
#pragma unroll 1
  for (u32 expert = lane; expert < experts; expert += 32) {
    if (scores[groups + quotient(expert, a.group_size)] == 0) words[word_of(expert)] = 0;
  }
}

// The experts with the k greatest keys, best first. Of equal keys, the first expert is chosen. A lane keeps its own
// words in registers.
template <int kEach>
DEVICE void choose(int k, u32 lane, u32 experts, const u32* words, u32* chosen) {
  u32 key[kEach];
#pragma unroll
  for (int v = 0; v < kEach; ++v) {
    const u32 expert = v * 32 + lane;
    key[v] = expert < experts ? words[word_of(expert)] : 0;
  }
#pragma unroll 1
  for (int j = 0; j < k; ++j) {
    u32 best = key[0];
#pragma unroll
    for (int v = 1; v < kEach; ++v) best = key[v] > best ? key[v] : best;
    best = warp_greatest(best);
    u32 mine = 0xffffffffu;
#pragma unroll
    for (int v = kEach - 1; v >= 0; --v) mine = key[v] == best ? v * 32 + lane : mine;
    const u32 expert = warp_least(mine);
#pragma unroll
    for (int v = 0; v < kEach; ++v) key[v] = v * 32 + lane == expert ? 0 : key[v];
    if (lane == 0) chosen[j] = expert;
  }
}

DEVICE void gate(const GatingArgs& a) {
  extern __shared__ u32 gate_memory[];
  const u32 lane = threadIdx.x, experts = static_cast<u32>(a.experts), k = static_cast<u32>(a.k);
  const i64 number = static_cast<i64>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (number >= a.rows) return;
  u32* words = gate_memory + threadIdx.y * static_cast<u32>(a.shared_words);
  u32 *scores = words + word_of(experts) + 1, *chosen = scores + 2 * static_cast<u32>(a.groups), *shares = chosen + k;
  u32* biases = shares + k;
  const char* row = a.logits + number * a.stride;
  const bool by_sigmoid = (a.flags & kSigmoid) != 0, renormalize = (a.flags & kRenormalize) != 0;
  const bool by_score = a.bias != nullptr || a.groups > 1;
  load_logits(row, a.bias, lane, experts, a.dtype, words, biases);
  // Until the groups are compared, a lane only meets words of its own.
  float base = -infinity(), total = 0.0f;
  if (!by_sigmoid && (by_score || !renormalize)) {
#pragma unroll 1
    for (u32 e = lane; e < experts; e += 32) base = fmaxf(base, __uint_as_float(words[word_of(e)]));
    base = warp_largest(base);
#pragma unroll 1
    for (u32 e = lane; e < experts; e += 32) total += score_of(__uint_as_float(words[word_of(e)]), false, base);
    total = warp_sum(total);
  }
  const float part = by_sigmoid ? 1.0f : 1.0f / total;
#pragma unroll 2
  for (u32 e = lane; e < experts; e += 32) {
    float score = __uint_as_float(words[word_of(e)]);
    if (by_score) score = score_of(score, by_sigmoid, base) * part;
    if (a.bias != nullptr) score += __uint_as_float(biases[e]);
    words[word_of(e)] = key_of(score);
  }
  __syncwarp();
  if (a.groups > 1) keep_groups(a, words, scores, lane);
  if (experts <= 256) {
    choose<8>(a.k, lane, experts, words, chosen);
  } else {
    choose<32>(a.k, lane, experts, words, chosen);
  }
  __syncwarp();
  float sum = 0.0f;
  if (renormalize) base = -infinity();
#pragma unroll 1
  for (u32 j = lane; j < k; j += 32) {
    const float x = logit(row, chosen[j], a.dtype);
    shares[j] = __float_as_uint(x);
    if (renormalize) base = fmaxf(base, x);
  }
  if (renormalize) base = warp_largest(base);
#pragma unroll 1
  for (u32 j = lane; j < k; j += 32) {
    const float share = score_of(__uint_as_float(shares[j]), by_sigmoid, base);
    shares[j] = __float_as_uint(share);
    sum += share;
  }
  if (renormalize) total = warp_sum(sum) + (by_sigmoid ? kTiny : 0.0f);
  const float factor = by_sigmoid && !renormalize ? a.scale : a.scale / total;
#pragma unroll 1
  for (u32 j = lane; j < k; j += 32) {
    a.indices[number * a.k + j] = static_cast<int>(chosen[j]);
    a.weights[number * a.k + j] = __uint_as_float(shares[j]) * factor;
  }
}

// ---- the gradient of gating ----

DEVICE void put(char* row, u32 expert, int dtype, float value) {
  if (dtype == 0) return Float32::store(row + expert * 4, value);
  char* at = row + expert * 2;
  if (dtype == 1) return Float16::store(at, value);
  BFloat16::store(at, value);
}

DEVICE void gate_backward(const GatingBackwardArgs& a) {
  const u32 lane = threadIdx.x, experts = static_cast<u32>(a.experts), k = static_cast<u32>(a.k);
  const i64 number = static_cast<i64>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (number >= a.rows) return;
  const char* row = a.logits + number * a.stride;
  char* result = a.result + number * a.experts * (a.dtype == 0 ? 4 : 2);
  const float* grad = a.grad + number * a.k;
  const u32* chosen = reinterpret_cast<const u32*>(a.indices) + number * a.k;
  const bool by_sigmoid = (a.flags & kSigmoid) != 0, renormalize = (a.flags & kRenormalize) != 0;
  // The shares are those of all experts, or of the chosen ones alone.
  const bool all = !by_sigmoid && !renormalize;
  const auto expert_of = [&](u32 i) { return all ? i : chosen[i]; };
  const u32 count = all ? experts : k;
  float base = -infinity(), total = by_sigmoid && lane == 0 ? kTiny : 0.0f;
#pragma unroll 1
  for (u32 i = lane; i < count; i += 32) {
    if (expert_of(i) < experts) base = fmaxf(base, logit(row, expert_of(i), a.dtype));
  }
  base = warp_largest(base);
#pragma unroll 1
  for (u32 i = lane; i < count; i += 32) {
    if (expert_of(i) < experts) total += score_of(logit(row, expert_of(i), a.dtype), by_sigmoid, base);
  }
  total = warp_sum(total);
  const float part = by_sigmoid && !renormalize ? 1.0f : 1.0f / total;
  const auto share = [&](u32 expert) { return score_of(logit(row, expert, a.dtype), by_sigmoid, base); };
  float dot = 0.0f;
#pragma unroll 1
  for (u32 j = lane; j < k; j += 32) {
    if (chosen[j] < experts) dot += grad[j] * share(chosen[j]);
  }
  dot = by_sigmoid && !renormalize ? 0.0f : warp_sum(dot) * part;
#pragma unroll 1
  for (u32 e = lane; e < experts; e += 32) put(result, e, a.dtype, all ? -a.scale * dot * (share(e) * part) : 0.0f);
  __syncwarp();  // before other lanes write the chosen experts again
#pragma unroll 1
  for (u32 j = lane; j < k; j += 32) {
    if (chosen[j] >= experts) continue;
    const float mine = share(chosen[j]), slope = a.scale * (grad[j] - dot) * mine * part;
    put(result, chosen[j], a.dtype, by_sigmoid ? slope * (1.0f - mine) : slope);
  }
}

// ---- places ----
// A stable sort by expert. Each warp counts the pairs of its part for every bucket: an expert, or none. A sum over
// buckets, warps and blocks gives the first place of each part, and the rank within 32 pairs comes from a ballot.

constexpr u32 kAhead = 4;  // loads in flight

DEVICE u32 bucket_of(const SortArgs& a, u32 pair) {
  const u32* words = reinterpret_cast<const u32*>(a.ids);
  const bool wide = a.id_bytes == 8;
  const u64 at = wide ? 2 * static_cast<u64>(pair) : pair;
  const u32 low = words[at], high = wide ? words[at + 1] : 0;
  return high == 0 && low < static_cast<u32>(a.experts) ? low : static_cast<u32>(a.experts);
}

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

// The lanes below this one.
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

// Every slot without a pair. `sorted` begins at a multiple of 16 bytes.
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

// The first slot of each bucket, from the pairs of each: blocks of experts are filled up, and what has no expert comes
// after the last. Called by all threads of a block; `sums` has a word per warp.
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

// What depends on the starts alone, for the threads of one block.
DEVICE void write_ends(const SortArgs& a, const int* starts) {
#pragma unroll 1
  for (int expert = static_cast<int>(threadIdx.x); expert < a.experts; expert += static_cast<int>(blockDim.x)) {
    if (a.ends != nullptr) a.ends[expert] = starts[expert + 1];
  }
  if (a.total != nullptr && threadIdx.x == 0) *a.total = starts[a.experts];
}

// The expert of each block of slots: the last whose start is not after it.
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
    a.expert_of[block] = slot < starts[a.experts] ? low : -1;
  }
}

// The first of three launches: the pairs of each block and bucket.
DEVICE void sort_count(const SortArgs& a) {
  extern __shared__ u32 sort_memory[];
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

// The second, of one block: counts become places within each bucket.
DEVICE void sort_scan(const SortArgs& a) {
  __shared__ u32 sums[32];
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

// The third, or the only one.
DEVICE void sort_place(const SortArgs& a) {
  extern __shared__ u32 place_memory[];
  const u32 buckets = static_cast<u32>(a.experts) + 1, warps = blockDim.x / 32;
  const bool alone = gridDim.x == 1;
  int* totals = reinterpret_cast<int*>(place_memory + warps * buckets);
  const int* starts = alone ? totals + buckets : a.starts;
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
    find_starts(a, totals, totals + buckets, reinterpret_cast<u32*>(totals + 2 * buckets));
    write_ends(a, starts);
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
    if (alone) slot += starts[bucket];
    const bool placed = bucket < buckets - 1;
    if (a.sorted != nullptr && placed) a.sorted[slot] = static_cast<int>(pair);
    if (a.positions != nullptr) a.positions[pair] = placed ? slot : ~slot;
  });
}

}  // namespace moe
}  // namespace precast

KERNEL(moe_gate, GatingArgs, 128, 1024, gate)
KERNEL(moe_gate_backward, GatingBackwardArgs, 128, 1024, gate_backward)

KERNEL(moe_sort_count, SortArgs, 1024, 1024, sort_count)
KERNEL(moe_sort_scan, SortArgs, 1024, 1024, sort_scan)
KERNEL(moe_sort_place, SortArgs, 1024, 1024, sort_place)
