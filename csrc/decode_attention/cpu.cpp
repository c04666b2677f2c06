// Attention over a paged cache, sixteen elements at a time. Compiled once per CPU level.
//
// A work item computes the scores of a chunk of keys, their softmax over the chunk, and the weighted sum of the values.
// The chunks of a row are merged in order, so the result does not depend on the number of threads.
#include "cpu.h"

#include "../common/exponential.h"

namespace precast::decode_attention::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

constexpr float kInfinity = __builtin_inff();
constexpr int64_t kMostWidth = 256;
constexpr int64_t kKeys = kLanes;  // loaded together

PRECAST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
PRECAST_INLINE int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

// Converts `count` elements to floats; `numbers` is the table of an 8-bit type. Called through a pointer, because a
// copy of the code below for each type would add a tenth of a megabyte to every wheel.
using Bring = void (*)(const char* from, int64_t count, const float* numbers, float* to);

template <class C>
void bring_as(const char* from, int64_t count, const float*, float* to) {
  const C* at = reinterpret_cast<const C*>(from);
  for (int64_t i = 0; i < count; i += kLanes) store_upto(to + i, load_upto(at + i, count - i), count - i);
}

void bring_narrow(const char* from, int64_t count, const float* numbers, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = numbers[static_cast<uint8_t>(from[i])];
}

Bring bring_for(int type) {
  if (type == kCacheE4M3 || type == kCacheE5M2) return bring_narrow;
  return type == kCacheFloat32 ? bring_as<float> : type == kCacheFloat16 ? bring_as<f16> : bring_as<bf16>;
}

PRECAST_INLINE int64_t block_of(const Attention& a, int64_t sequence, int64_t number) {
  const int64_t at = sequence * a.table_row + number;
  if ((a.flags & kLongTables) != 0) return reinterpret_cast<const int64_t*>(a.tables)[at];
  return reinterpret_cast<const int32_t*>(a.tables)[at];
}

// Sums of adjacent lanes: those of `a`, then those of `b`.
PRECAST_INLINE Floats pairs_added(Floats a, Floats b) {
  const Pairs apart = separate({a, b});
  return apart.first + apart.second;
}

// The dot products of a row with 16 keys. Lanes are summed as a tree, in a fixed order.
PRECAST_RARE void dots(const float* query, const float (*keys)[kMostWidth], int64_t width, float* scores) {
  constexpr int kAtOnce = 4;
  Floats quarter[kKeys / kAtOnce];
  for (int64_t k = 0; k < kKeys; k += kAtOnce) {
    Floats total[kAtOnce];
    for (int r = 0; r < kAtOnce; ++r) total[r] = broadcast(0);
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats q = load(query + i);
      for (int r = 0; r < kAtOnce; ++r) total[r] = fma(load(keys[k + r] + i), q, total[r]);
    }
    quarter[k / kAtOnce] = pairs_added(pairs_added(total[0], total[1]), pairs_added(total[2], total[3]));
  }
  // Each now has four lanes for each of four keys.
  store(scores, pairs_added(pairs_added(quarter[0], quarter[1]), pairs_added(quarter[2], quarter[3])));
}

// Adds 16 weighted values to 16 * kCount columns.
template <int kCount>
PRECAST_INLINE void add_weighted(const float (*values)[kMostWidth], const float* weights, int64_t column,
                                 float* totals) {
  Floats total[kCount];
  for (int c = 0; c < kCount; ++c) total[c] = load(totals + column + c * kLanes);
  for (int64_t k = 0; k < kKeys; ++k) {
    const Floats weight = broadcast(weights[k]);
    for (int c = 0; c < kCount; ++c) total[c] = fma(load(values[k] + column + c * kLanes), weight, total[c]);
  }
  for (int c = 0; c < kCount; ++c) store(totals + column + c * kLanes, total[c]);
}

PRECAST_INLINE Floats where_less(Floats a, Floats b, Floats yes, Floats no) {
#define PRECAST_PART(i) select(is_less(a.part[i], b.part[i]), yes.part[i], no.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

// tanh, computed from exp(-2 |x|), and near zero, where that loses digits, from its series.
PRECAST_INLINE Floats soft_capped(Floats x, float cap) {
  const Floats one = broadcast(1), y = x * broadcast(1 / cap), way = sign(y);
  const Floats e = exponential(y * way * broadcast(-2));
  const Floats square = y * y;
  const Floats series = fma(y * square, fma(square, broadcast(2.0f / 15), broadcast(-1.0f / 3)), y);
  return where_less(y * way, broadcast(0.0625f), series, way * (one - e) / (one + e)) * broadcast(cap);
}

// The state of a tile of rows while it goes through a chunk.
struct Tile {
  float query[kRows][kMostWidth];
  float scores[kRows * kChunk];
  float totals[kRows][kMostWidth];
  int64_t sequence, kv_head, first, rows;  // the tile's first row of those that share the head
  int64_t begin, end;                      // keys
};

PRECAST_INLINE int64_t group_of(const Attention& a) { return a.heads / a.kv_heads; }

// The position of a row's query. Negative if the sequence is too short for that query.
PRECAST_INLINE int64_t position_of(const Work& work, const Tile& tile, int64_t row) {
  return work.lengths[tile.sequence] - work.call.queries + (tile.first + row) / group_of(work.call);
}

PRECAST_INLINE int64_t head_of(const Attention& a, const Tile& tile, int64_t row) {
  return tile.kv_head * group_of(a) + (tile.first + row) % group_of(a);
}

// A key or a value in pieces of `each` elements, `stride` bytes apart.
void bring_pieces(const Work& work, Bring bring, const char* at, int64_t width, int64_t each, int64_t stride,
                  float* to) {
  for (int64_t i = 0; i < width; i += each, at += stride) bring(at, each, work.narrow, to + i);
}

// Repeats the last key beyond the end; its scores there become those of a masked key.
void score_keys(const Work& work, Bring bring, Tile& tile) {
  const Attention& a = work.call;
  float keys[kKeys][kMostWidth];
  for (int64_t first = tile.begin; first < tile.end; first += kKeys) {
    for (int64_t k = 0; k < kKeys; ++k) {
      const int64_t j = smaller(first + k, tile.end - 1);
      const char* at = a.keys + block_of(a, tile.sequence, j / a.block_size) * a.key_block +
                       j % a.block_size * a.key_position + tile.kv_head * a.key_head;
      bring_pieces(work, bring, at, a.key_width, a.key_piece_width, a.key_piece, keys[k]);
    }
    for (int64_t row = 0; row < tile.rows; ++row) {
      dots(tile.query[row], keys, a.key_width, tile.scores + row * kChunk + (first - tile.begin));
    }
  }
}

// Replaces the scores of a row with weights. Writes the maximum and the sum of the weights to `part`.
PRECAST_RARE void weigh(const Work& work, const Tile& tile, int64_t row, float* scores, float* part) {
  const Attention& a = work.call;
  const int64_t position = position_of(work, tile, row), head = head_of(a, tile, row), count = tile.end - tile.begin;
  const int64_t seen = a.window != 0 ? larger(position - a.window + 1, tile.begin) : tile.begin;
  const int64_t open = smaller(larger(seen - tile.begin, 0), count);
  const int64_t close = larger(smaller(position + 1 - tile.begin, count), open);
  float factor = a.scale;
  if (a.key_scales != nullptr) factor *= a.key_scales[(a.flags & kHeadKeyScales) != 0 ? tile.kv_head : 0];
  const float slope = a.slopes != nullptr ? a.slopes[head] : 0;
  float steps[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) steps[i] = static_cast<float>(i);
  Floats most = broadcast(-kInfinity);
  for (int64_t i = 0; i < count; i += kLanes) {
    Floats x = load(scores + i) * broadcast(factor);
    if (a.softcap != 0) x = soft_capped(x, a.softcap);
    const float distance = static_cast<float>(tile.begin + i - position);
    if (a.slopes != nullptr) x = fma(load(static_cast<const float*>(steps)) + broadcast(distance), broadcast(slope), x);
    store(scores + i, x);
    if (i < open || i + kLanes > close) {
      for (int64_t k = i; k < i + kLanes; ++k) {
        if (k < open || k >= close) scores[k] = -kInfinity;
      }
    }
    most = greater(most, load(static_cast<const float*>(scores + i)));
  }
  const float largest = largest_lane(most);
  const Floats base = broadcast(largest == -kInfinity ? 0 : largest);
  Floats total = broadcast(0);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats weight = exponential(load(scores + i) - base);
    store(scores + i, weight);
    total = total + weight;
  }
  const float all = sum(total);
  part[a.value_width] = all == all ? largest : all;  // a NaN among the scores must not be lost with its chunk
  part[a.value_width + 1] = all;
}

void add_values(const Work& work, Bring bring, Tile& tile) {
  const Attention& a = work.call;
  float values[kKeys][kMostWidth];
  for (int64_t row = 0; row < tile.rows; ++row) {
    for (int64_t i = 0; i < a.value_width; i += kLanes) store(tile.totals[row] + i, broadcast(0));
  }
  for (int64_t first = tile.begin; first < tile.end; first += kKeys) {
    for (int64_t k = 0; k < kKeys; ++k) {
      const int64_t j = smaller(first + k, tile.end - 1);  // beyond the end its weight is zero
      const char* at = a.values + block_of(a, tile.sequence, j / a.block_size) * a.value_block +
                       j % a.block_size * a.value_position + tile.kv_head * a.value_head;
      bring_pieces(work, bring, at, a.value_width, a.value_piece_width, a.value_piece, values[k]);
    }
    for (int64_t row = 0; row < tile.rows; ++row) {
      const float* weights = tile.scores + row * kChunk + (first - tile.begin);
      int64_t column = 0;
      for (; column + 4 * kLanes <= a.value_width; column += 4 * kLanes) {
        add_weighted<4>(values, weights, column, tile.totals[row]);
      }
      for (; column < a.value_width; column += kLanes) add_weighted<1>(values, weights, column, tile.totals[row]);
    }
  }
}

void bring_queries(const Work& work, Tile& tile) {
  const Attention& a = work.call;
  const Bring bring = bring_for(a.dtype);  // its numbers are those of the first cache types
  for (int64_t row = 0; row < tile.rows; ++row) {
    const char* at = a.query + tile.sequence * a.query_sequence + (tile.first + row) / group_of(a) * a.query_token +
                     head_of(a, tile, row) * a.query_head;
    bring(at, a.key_width, nullptr, tile.query[row]);
  }
}

PRECAST_RARE float exponential_of(float x) {
  float lane[kLanes];
  store(lane, exponential(broadcast(x)));
  return lane[0];
}

}  // namespace

void attend_chunks(const Work& work, int64_t begin, int64_t end) {
  const Attention& a = work.call;
  const int64_t rows = group_of(a) * a.queries, stride = a.value_width + 2;
  const Bring bring = bring_for(a.cache_dtype);
  Tile tile;
  int64_t sequence = 0;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t chunk = item / a.kv_heads;
    while (work.starts[sequence + 1] <= chunk) ++sequence;
    const int64_t length = work.lengths[sequence];
    const int64_t oldest = a.window != 0 ? larger(length - a.queries - a.window + 1, 0) : 0;
    tile.sequence = sequence;
    tile.kv_head = item - chunk * a.kv_heads;
    const int64_t first = (oldest / kChunk + chunk - work.starts[sequence]) * kChunk;
    tile.begin = larger(first, oldest);
    tile.end = smaller(first + kChunk, length);
    for (tile.first = 0; tile.first < rows; tile.first += kRows) {
      tile.rows = smaller(kRows, rows - tile.first);
      bring_queries(work, tile);
      score_keys(work, bring, tile);
      float* part = work.parts + (item * rows + tile.first) * stride;
      for (int64_t row = 0; row < tile.rows; ++row) {
        weigh(work, tile, row, tile.scores + row * kChunk, part + row * stride);
      }
      add_values(work, bring, tile);
      for (int64_t row = 0; row < tile.rows; ++row) {
        for (int64_t i = 0; i < a.value_width; i += kLanes) store(part + row * stride + i, load(tile.totals[row] + i));
      }
    }
  }
}

void merge_rows(const Work& work, int64_t begin, int64_t end) {
  const Attention& a = work.call;
  const int64_t group = group_of(a), rows = group * a.queries, stride = a.value_width + 2;
  float total[kMostWidth], lane[kLanes];
  for (int64_t row = begin; row < end; ++row) {
    const int64_t sequence = row / (int64_t{a.queries} * a.heads), query = row / a.heads % a.queries;
    const int64_t head = row % a.heads, kv_head = head / group, within = query * group + head % group;
    const auto part = [&](int64_t chunk) {
      return work.parts + ((chunk * a.kv_heads + kv_head) * rows + within) * stride;
    };
    const int64_t first = work.starts[sequence], last = work.starts[sequence + 1];
    float largest = a.sinks != nullptr ? a.sinks[head] : -kInfinity, sum = 0;
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const float one = part(chunk)[a.value_width];
      if (!(one <= largest)) largest = one;  // also selects a NaN
    }
    const float base = largest == -kInfinity ? 0 : largest;
    if (a.sinks != nullptr) sum = exponential_of(a.sinks[head] - base);
    for (int64_t i = 0; i < a.value_width; ++i) total[i] = 0;
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const float* from = part(chunk);
      const float weight = exponential_of(from[a.value_width] - base);
      if (weight == 0) continue;
      store(lane, fma(broadcast(from[a.value_width + 1]), broadcast(weight), broadcast(sum)));
      sum = lane[0];
      for (int64_t i = 0; i < a.value_width; i += kLanes) {
        store(total + i, fma(load(from + i), broadcast(weight), load(static_cast<const float*>(total + i))));
      }
    }
    float factor = sum == 0 ? 0 : 1 / sum;
    if (a.value_scales != nullptr) factor *= a.value_scales[(a.flags & kHeadValueScales) != 0 ? kv_head : 0];
    with_type(a.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* to = reinterpret_cast<T*>(a.out) + row * a.value_width;
      for (int64_t i = 0; i < a.value_width; i += kLanes) {
        store(to + i, load(static_cast<const float*>(total + i)) * broadcast(factor));
      }
    });
    a.lse[row] = largest;
    work.sums[row] = sum;
  }
}

}  // namespace precast::decode_attention::PRECAST_CPU_LEVEL
