// Chooses the experts of tokens, a warp per token.
#pragma once

#include "moe.cuh"

namespace precast {
namespace moe {

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

}  // namespace moe
}  // namespace precast
