// Gating and sums of rows on the CPU. Compiled once per CPU level.
//
// Scores are computed sixteen at a time. The choice goes by the greatest of each sixteen, for several tokens in turns:
// while one waits for a maximum, the processor works on the next. Tokens with NaN or minus infinity, which the removed
// scores become, are left to plain code. Sums over a token's rows run over its places in order, so a result does not
// depend on the number of threads.
#include "cpu.h"

#include "../cpu/exponential.h"
#include "../cpu/row_simd.h"

namespace precast::moe::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

constexpr int64_t kMost = 1024;  // experts, as kMostExperts of args.h
constexpr float kInfinity = __builtin_inff();
constexpr float kTiny = 1e-20f;  // added to a sum of sigmoids, as DeepSeek-V3 does

// Orders floats as integers: NaN first, then by value. The two zeros are equal. 0 is below every number.
uint32_t key_of(float value) {
  if (value != value) return 0xffffffffu;
  const float canonical = value + 0.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &canonical, 4);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// A row of floats, readable and writable up to a multiple of sixteen.
struct Values {
  alignas(64) float at[kMost + kLanes];
};

template <class T>
PRECAST_RARE void widen(const T* from, int64_t count, Values* to) {
  for (int64_t i = 0; i < count; i += kLanes) store(to->at + i, load_upto(from + i, count - i));
}

// NaN if there is one.
PRECAST_RARE float largest_of(const Values& values, int64_t count) {
  const Floats first = broadcast(values.at[0]), zero = broadcast(0.0f);
  Floats most = first, not_numbers = zero;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats here =
        where_less(lane_numbers(), broadcast(static_cast<float>(count - i)), load(values.at + i), first);
    not_numbers = not_numbers + here * zero;  // of infinities too
    most = greater(most, here);
  }
  const float found = sum(not_numbers);
  if (found == found) return largest_lane(most);
  float largest = values.at[0];
  for (int64_t i = 1; i < count && largest == largest; ++i) {
    if (!(values.at[i] <= largest)) largest = values.at[i];
  }
  return largest;
}

// Sixteen sums, then their sum.
PRECAST_RARE float total_of(const Values& values, int64_t count) {
  Floats lanes = broadcast(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) lanes = lanes + load_upto(values.at + i, count - i);
  return sum(lanes);
}

// exp(value - base) of each value, and their sum, lane by lane: a plain sum of 1024 has 9e-6 of error.
PRECAST_RARE float exponentials(const Values& from, float base, int64_t count, Values* to) {
  for (int64_t i = 0; i < count; i += kLanes) {
    store(to->at + i, exponential(load(from.at + i) - broadcast(base)));
  }
  return total_of(*to, count);
}

PRECAST_RARE void sigmoids(const Values& from, int64_t count, Values* to) {
  const Floats one = broadcast(1.0f), most = broadcast(88.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats power = exponential(lesser(broadcast(0.0f) - load(from.at + i), most));
    store(to->at + i, one / (one + power));
  }
}

PRECAST_RARE void multiply(Values* values, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) values->at[i] *= factor;
}

// The score of a group: its largest value, or the sum of its two largest.
float group_score(const float* values, int64_t size, bool top_two) {
  int64_t first = 0, second = -1;
  for (int64_t i = 1; i < size; ++i) {
    if (key_of(values[i]) > key_of(values[first])) {
      second = first;
      first = i;
    } else if (second < 0 || key_of(values[i]) > key_of(values[second])) {
      second = i;
    }
  }
  return top_two && second >= 0 ? values[first] + values[second] : values[first];
}

// Calls drop(expert) for those outside of the best groups. Of equal groups, the first is better.
template <class Drop>
void drop_groups(const GateRows& rows, const Values& choice, const Drop& drop) {
  const int64_t size = rows.experts / rows.groups;
  uint32_t scores[kMost];
  for (int64_t g = 0; g < rows.groups; ++g) scores[g] = key_of(group_score(choice.at + g * size, size, rows.top_two));
  for (int64_t g = 0; g < rows.groups; ++g) {
    int64_t better = 0;
    for (int64_t other = 0; other < rows.groups; ++other) {
      better += scores[other] > scores[g] || (scores[other] == scores[g] && other < g);
    }
    if (better < rows.kept_groups) continue;
    for (int64_t i = 0; i < size; ++i) drop(g * size + i);
  }
}

// Writes the k experts with the greatest keys. Of equal keys, the first expert is chosen.
PRECAST_RARE void choose(uint32_t* keys, int64_t experts, int64_t k, int32_t* chosen) {
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = 0;
    for (int64_t i = 1; i < experts; ++i) best = keys[i] > keys[best] ? i : best;
    chosen[j] = static_cast<int32_t>(best);
    keys[best] = 0;
  }
}

// Whether all values are numbers above minus infinity.
PRECAST_RARE bool all_above(const Values& values, int64_t count) {
  Floats below = broadcast(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats here = load_upto(values.at + i, count - i);
    below = below + where_less(broadcast(-kInfinity), here, broadcast(0.0f), broadcast(1.0f));
  }
  return sum(below) == 0;
}

// The scores of a token from which the best are taken, padded with minus infinity, and the greatest of each sixteen.
struct Taken {
  alignas(64) float values[kMost];
  alignas(64) float best[kMost / kLanes];
};

PRECAST_RARE void prepare(const Values& choice, int64_t experts, Taken* to) {
  for (int64_t i = 0; i < kMost / kLanes && i * kLanes < experts; i += kLanes)
    store(to->best + i, broadcast(-kInfinity));
  for (int64_t i = 0; i < experts; i += kLanes) {
    const Floats open = broadcast(static_cast<float>(experts - i));
    const Floats here = where_less(lane_numbers(), open, load(choice.at + i), broadcast(-kInfinity));
    store(to->values + i, here);
    to->best[i / kLanes] = largest_lane(here);
  }
}

// The first lane that equals `largest`, the maximum of the lanes. No lane is NaN.
PRECAST_INLINE int64_t lane_of(Floats lanes, float largest) {
  const Floats none = broadcast(static_cast<float>(-kLanes));
  const Floats places = where_less(lanes, broadcast(largest), none, broadcast(0.0f) - lane_numbers());
  return static_cast<int64_t>(-largest_lane(places));
}

// A vector store: the vector is loaded soon, and would wait for a smaller one.
PRECAST_INLINE Floats with_lane(Floats lanes, int64_t lane, float value) {
  const Floats number = broadcast(static_cast<float>(lane)), other = broadcast(value);
  const Floats above = where_less(number, lane_numbers(), lanes, other);
  return where_less(lane_numbers(), number, lanes, above);
}

// Removes the greatest score, the first of equal ones, and returns its expert.
PRECAST_INLINE int64_t take(Taken* from, int64_t experts) {
  const auto load_at = [](float* at) PRECAST_EVERYWHERE { return load(static_cast<const float*>(at)); };
  const bool one_group = experts <= kLanes;
  float* best = one_group ? from->values : from->best;  // of 256 experts
  float largest = largest_lane(load_at(best));
  for (int64_t i = kLanes; i * kLanes < experts; i += kLanes) {
    const float here = largest_lane(load_at(from->best + i));
    if (here > largest) largest = here, best = from->best + i;
  }
  const Floats groups = load_at(best);
  const int64_t group = lane_of(groups, largest);
  if (one_group) {
    store(best, with_lane(groups, group, -kInfinity));
    return group;
  }
  const int64_t first = (best - from->best + group) * kLanes;
  const Floats lanes = load_at(from->values + first);
  const int64_t lane = lane_of(lanes, largest);
  const Floats left = with_lane(lanes, lane, -kInfinity);
  store(from->values + first, left);
  store(best, with_lane(groups, group, largest_lane(left)));
  return first + lane;
}

// The logits of the chosen experts.
void pick(const Values& logits, const int32_t* chosen, int64_t k, Values* picked) {
  for (int64_t j = 0; j < k; ++j) picked->at[j] = logits.at[chosen[j]];
  for (int64_t j = k; j % kLanes != 0; ++j) picked->at[j] = 0;
}

// What a token has between the choice and the weights.
struct Token {
  Values logits;
  Taken left;
  float base, total;
  bool taken;  // `left` is in use: else the experts are chosen
};

template <class T>
PRECAST_INLINE void open_token(const GateRows& rows, int64_t row, Token* token) {
  const int64_t experts = rows.experts;
  const bool by_score = rows.bias != nullptr || rows.groups > 1;
  const Values& logits = token->logits;
  Values scores;
  widen(static_cast<const T*>(rows.logits) + row * rows.stride, experts, &token->logits);
  token->base = token->total = 0;
  if (!rows.sigmoid && (by_score || !rows.renormalize)) {
    token->base = largest_of(logits, experts);
    token->total = exponentials(logits, token->base, experts, &scores);
  }
  if (by_score) {
    if (rows.sigmoid) sigmoids(logits, experts, &scores);
    if (!rows.sigmoid) multiply(&scores, experts, 1.0f / token->total);
    for (int64_t i = 0; i < experts && rows.bias != nullptr; ++i) scores.at[i] += rows.bias[i];
  }
  Values& choice = by_score ? scores : token->logits;
  token->taken = all_above(choice, experts);
  if (token->taken) {
    if (rows.groups > 1) drop_groups(rows, choice, [&](int64_t i) { choice.at[i] = -kInfinity; });
    return prepare(choice, experts, &token->left);
  }
  uint32_t keys[kMost];
  for (int64_t i = 0; i < experts; ++i) keys[i] = key_of(choice.at[i]);
  if (rows.groups > 1) drop_groups(rows, choice, [&](int64_t i) { keys[i] = 0; });
  choose(keys, experts, rows.k, rows.indices + row * rows.k);
}

PRECAST_RARE void weigh_token(const GateRows& rows, int64_t row, const Token& token) {
  const int64_t k = rows.k;
  Values picked;
  pick(token.logits, rows.indices + row * k, k, &picked);
  float total = token.total;
  if (rows.sigmoid) {
    sigmoids(picked, k, &picked);
    total = total_of(picked, k) + kTiny;
  } else {
    const float sum = exponentials(picked, rows.renormalize ? largest_of(picked, k) : token.base, k, &picked);
    if (rows.renormalize) total = sum;
  }
  const float factor = rows.sigmoid && !rows.renormalize ? rows.scale : rows.scale / total;
  for (int64_t j = 0; j < k; ++j) rows.weights[row * k + j] = picked.at[j] * factor;
}

template <class T>
void gate_rows(const GateRows& rows, int64_t begin, int64_t end) {
  constexpr int64_t kTokens = 8;  // tokens whose steps are interleaved
  Token tokens[kTokens];
  for (int64_t first = begin; first < end; first += kTokens) {
    const int64_t count = smaller(kTokens, end - first);
    for (int64_t t = 0; t < count; ++t) open_token<T>(rows, first + t, tokens + t);
    for (int64_t j = 0; j < rows.k; ++j) {
      for (int64_t t = 0; t < count; ++t) {
        if (!tokens[t].taken) continue;
        rows.indices[(first + t) * rows.k + j] = static_cast<int32_t>(take(&tokens[t].left, rows.experts));
      }
    }
    for (int64_t t = 0; t < count; ++t) weigh_token(rows, first + t, tokens[t]);
  }
}

template <class T>
void gate_backward_rows(const GateBackwardRows& rows, int64_t begin, int64_t end) {
  const int64_t experts = rows.experts, k = rows.k;
  Values logits, shares, picked, products;
  for (int64_t row = begin; row < end; ++row) {
    widen(static_cast<const T*>(rows.logits) + row * rows.stride, experts, &logits);
    const int32_t* chosen = rows.indices + row * k;
    const float* grad = rows.grad + row * k;
    T* result = static_cast<T*>(rows.result) + row * experts;
    pick(logits, chosen, k, &picked);
    for (int64_t i = 0; i < experts; ++i) shares.at[i] = 0;
    float total = 1.0f;
    if (rows.sigmoid) {
      sigmoids(picked, k, &picked);
      total = total_of(picked, k) + kTiny;
    } else if (rows.renormalize) {
      total = exponentials(picked, largest_of(picked, k), k, &picked);
      multiply(&picked, k, 1.0f / total);
    } else {
      const float base = largest_of(logits, experts);
      total = exponentials(logits, base, experts, &shares);
      multiply(&shares, experts, 1.0f / total);
      for (int64_t j = 0; j < k; ++j) picked.at[j] = shares.at[chosen[j]];
    }
    for (int64_t j = 0; j < k; ++j) products.at[j] = grad[j] * picked.at[j];
    float dot = total_of(products, k);
    if (rows.sigmoid) dot /= total;
    if (!rows.sigmoid && !rows.renormalize) multiply(&shares, experts, -rows.scale * dot);
    for (int64_t j = 0; j < k; ++j) {
      const float share = picked.at[j];
      float slope = grad[j] * rows.scale;
      if (!rows.sigmoid || rows.renormalize) slope = rows.scale * (grad[j] - dot);
      if (rows.sigmoid && rows.renormalize) slope /= total;
      shares.at[chosen[j]] = slope * share * (rows.sigmoid ? 1.0f - share : 1.0f);
    }
    for (int64_t i = 0; i < experts; i += kLanes) store_upto(result + i, load(shares.at + i), experts - i);
  }
}

template <class T>
void combine_rows(const CombineRows& rows, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const int32_t* positions = rows.positions + token * rows.k;
    const float* weights = rows.weights == nullptr ? nullptr : rows.weights + token * rows.k;
    T* result = static_cast<T*>(rows.result) + token * rows.width;
    for (int64_t i = 0; i < rows.width; i += kBlock) {
      Block total = both(0.0f);
      for (int64_t j = 0; j < rows.k; ++j) {
        if (positions[j] < 0 || positions[j] >= rows.slots) continue;
        const T* row = static_cast<const T*>(rows.rows) + positions[j] * rows.stride;
        total = fma(load_block_upto(row + i, rows.width - i), both(weights == nullptr ? 1.0f : weights[j]), total);
      }
      store_block_upto(result + i, total, rows.width - i);
    }
  }
}

template <class T>
PRECAST_RARE double dot_of(const T* a, const T* b, int64_t width) {
  double total = 0;
  for (int64_t start = 0; start < width; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, width);
    Block part = both(0.0f);
    for (int64_t i = start; i < stop; i += kBlock) {
      part = fma(load_block_upto(a + i, stop - i), load_block_upto(b + i, stop - i), part);
    }
    total += static_cast<double>(sum(part));
  }
  return total;
}

template <class T>
void combine_backward_rows(const CombineBackwardRows& rows, int64_t begin, int64_t end) {
  for (int64_t pair = begin * rows.k; pair < end * rows.k; ++pair) {
    const int64_t position = rows.positions[pair];
    rows.grad_weights[pair] = 0;
    if (position < 0 || position >= rows.slots) continue;
    const T* grad = static_cast<const T*>(rows.grad) + pair / rows.k * rows.grad_stride;
    const T* row = static_cast<const T*>(rows.rows) + position * rows.stride;
    T* grad_row = static_cast<T*>(rows.grad_rows) + position * rows.width;
    rows.grad_weights[pair] = static_cast<float>(dot_of(grad, row, rows.width));
    const Block weight = both(rows.weights[pair]);
    for (int64_t i = 0; i < rows.width; i += kBlock) {
      store_block_upto(grad_row + i, load_block_upto(grad + i, rows.width - i) * weight, rows.width - i);
    }
  }
}

}  // namespace

void gate(const GateRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { gate_rows<decltype(zero)>(rows, begin, end); });
}

void gate_backward(const GateBackwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { gate_backward_rows<decltype(zero)>(rows, begin, end); });
}

void combine(const CombineRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { combine_rows<decltype(zero)>(rows, begin, end); });
}

void combine_backward(const CombineBackwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { combine_backward_rows<decltype(zero)>(rows, begin, end); });
}

}  // namespace precast::moe::PRECAST_CPU_LEVEL
