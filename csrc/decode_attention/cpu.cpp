// Attention over a paged cache, sixteen elements and sixteen keys at a time. Compiled once per CPU level.
//
// A work item computes the scores of a chunk of keys, their softmax over the chunk, and the weighted sum of the values,
// for all rows that share the head. A tile of rows and keys has its sums in registers: each number of the cache is
// loaded once for several rows. float32 is read where it lies; other types are converted first, sixteen keys at a time.
// The chunks of a row are merged in order, so the result does not depend on the number of threads.
#include "cpu.h"

#include "../cpu/exponential.h"

namespace precast::decode_attention::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

constexpr float kInfinity = __builtin_inff();
constexpr int64_t kMostWidth = 256;
constexpr int64_t kKeys = kLanes;  // loaded together

PRECAST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
PRECAST_INLINE int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

// Converts `count` elements of each of some rows, which are `step` bytes apart, to floats in rows of `room`; `numbers`
// is the table of an 8-bit type. Called through a pointer, because a copy of the code below for each type would add a
// tenth of a megabyte to every wheel.
using Bring = void (*)(const char* from, int64_t step, int64_t rows, int64_t count, const float* numbers, float* to,
                       int64_t room);

template <class C>
void bring_as(const char* from, int64_t step, int64_t rows, int64_t count, const float*, float* to, int64_t room) {
  for (; rows > 0; --rows, from += step, to += room) {
    const C* at = reinterpret_cast<const C*>(from);
    for (int64_t i = 0; i < count; i += kLanes) store_upto(to + i, load_upto(at + i, count - i), count - i);
  }
}

void bring_narrow(const char* from, int64_t step, int64_t rows, int64_t count, const float* numbers, float* to,
                  int64_t room) {
  for (; rows > 0; --rows, from += step, to += room) {
    for (int64_t i = 0; i < count; ++i) to[i] = numbers[static_cast<uint8_t>(from[i])];
  }
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

// A tile has its sums in registers: of kRowsTogether rows with kAcross keys, or with kAcross * 16 elements of values.
// Rows that are left over are a tile each.
constexpr int kRowsTogether = PRECAST_WIDTH == 16 ? 4 : 2;
template <int kCount>
constexpr int kAcross = kCount == 1 || PRECAST_WIDTH == 16 ? 4 : 2;

// The dot products of kCount rows with 16 keys. The lanes of a product are added as a tree, in a fixed order: keys k
// and k + 8 first, so that the products end up in the order of the keys.
template <int kCount>
PRECAST_RARE void dots(const float (*rows)[kMostWidth], const float* const* keys, int64_t width, float* scores) {
  constexpr int kTogether = kAcross<kCount>;
  Floats pairs[kCount][kKeys / 2];
  for (int64_t k = 0; k < kKeys / 2; k += kTogether / 2) {
    Floats total[kCount][kTogether];
    const float* at[kTogether];
    PRECAST_UNROLLED
    for (int n = 0; n < kTogether; ++n) {
      at[n] = keys[k + n / 2 + n % 2 * (kKeys / 2)];
      PRECAST_UNROLLED
      for (int r = 0; r < kCount; ++r) total[r][n] = broadcast(0);
    }
    for (int64_t i = 0; i < width; i += kLanes) {
      PRECAST_UNROLLED
      for (int n = 0; n < kTogether; ++n) {
        const Floats key = load(at[n] + i);
        PRECAST_UNROLLED
        for (int r = 0; r < kCount; ++r) total[r][n] = fma(load(rows[r] + i), key, total[r][n]);
      }
    }
    PRECAST_UNROLLED
    for (int r = 0; r < kCount; ++r) {
      PRECAST_UNROLLED
      for (int n = 0; n < kTogether; n += 2) pairs[r][k + n / 2] = halves_added({total[r][n], total[r][n + 1]});
    }
  }
  PRECAST_UNROLLED
  for (int r = 0; r < kCount; ++r) {
    PRECAST_UNROLLED
    for (int64_t half = kKeys / 4; half > 0; half /= 2) {
      PRECAST_UNROLLED
      for (int64_t k = 0; k < half; ++k) pairs[r][k] = halves_added({pairs[r][k], pairs[r][k + half]});
    }
    store(scores + r * kChunk, pairs[r][0]);
  }
}

// Adds up to 16 weighted values to kWide * 16 columns of kCount rows, whose sums are `stride` apart.
template <int kCount, int kWide>
PRECAST_INLINE void add_weighted(const float* const* values, int64_t count, const float* weights, int64_t column,
                                 float* totals, int64_t stride) {
  Floats total[kCount][kWide];
  PRECAST_UNROLLED
  for (int r = 0; r < kCount; ++r) {
    PRECAST_UNROLLED
    for (int c = 0; c < kWide; ++c) total[r][c] = load(totals + r * stride + column + c * kLanes);
  }
  for (int64_t k = 0; k < count; ++k) {
    Floats value[kWide];
    PRECAST_UNROLLED
    for (int c = 0; c < kWide; ++c) value[c] = load(values[k] + column + c * kLanes);
    PRECAST_UNROLLED
    for (int r = 0; r < kCount; ++r) {
      const Floats weight = broadcast(weights[r * kChunk + k]);
      PRECAST_UNROLLED
      for (int c = 0; c < kWide; ++c) total[r][c] = fma(value[c], weight, total[r][c]);
    }
  }
  PRECAST_UNROLLED
  for (int r = 0; r < kCount; ++r) {
    PRECAST_UNROLLED
    for (int c = 0; c < kWide; ++c) store(totals + r * stride + column + c * kLanes, total[r][c]);
  }
}

template <int kCount>
PRECAST_RARE void add_values_to(const float* const* values, int64_t count, const float* weights, int64_t width,
                                float* totals, int64_t stride) {
  constexpr int kWide = kAcross<kCount>;
  int64_t column = 0;
  for (; column + kWide * kLanes <= width; column += kWide * kLanes) {
    add_weighted<kCount, kWide>(values, count, weights, column, totals, stride);
  }
  for (; column < width; column += kLanes) {
    add_weighted<kCount, 1>(values, count, weights, column, totals, stride);
  }
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

// The keys or the values of a call, with strides in bytes.
struct Cache {
  const char* data;
  int64_t block, position, head, width, piece, piece_width;
  Bring bring;
  int64_t row_bytes;  // of a row that is in one piece, else 0
  bool in_place;      // whole rows of float32
};

Cache cache_of(const Attention& a, bool of_keys) {
  const Bring bring = bring_for(a.cache_dtype);
  const bool wide = a.cache_dtype == kCacheFloat32;
  const int64_t size = wide ? 4 : a.cache_dtype == kCacheE4M3 || a.cache_dtype == kCacheE5M2 ? 1 : 2;
  if (of_keys) {
    return {a.keys,
            a.key_block,
            a.key_position,
            a.key_head,
            a.key_width,
            a.key_piece,
            a.key_piece_width,
            bring,
            a.key_piece_width == a.key_width ? a.key_width * size : 0,
            wide && a.key_piece_width == a.key_width};
  }
  return {a.values,
          a.value_block,
          a.value_position,
          a.value_head,
          a.value_width,
          a.value_piece,
          a.value_piece_width,
          bring,
          a.value_piece_width == a.value_width ? a.value_width * size : 0,
          wide && a.value_piece_width == a.value_width};
}

// Sixteen keys or values of a tile as floats.
struct Sixteen {
  const float* at[kKeys];
  float room[kKeys * kMostWidth];
};

PRECAST_INLINE const char* row_at(const Work& work, const Cache& cache, const Tile& tile, int64_t block, int64_t row) {
  return cache.data + block_of(work.call, tile.sequence, block) * cache.block + row * cache.position +
         tile.kv_head * cache.head;
}

// Asks for the rows from `first` on: neighbours of a head are too far apart for the processor to see them coming. It
// does not matter if rows beyond a block are not there.
PRECAST_INLINE void ask_for(const Work& work, const Cache& cache, const Tile& tile, int64_t first) {
  if (first >= tile.end) return;
  const int64_t block = first / work.call.block_size;
  const char* row = row_at(work, cache, tile, block, first - block * work.call.block_size);
  for (int64_t k = 0; k < kKeys; ++k, row += cache.position) {
    for (int64_t i = 0; i < cache.row_bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
  }
}

// Finds those from `first` on. Beyond the end of the chunk, the last one is repeated.
void find(const Work& work, const Cache& cache, const Tile& tile, int64_t first, Sixteen* found) {
  ask_for(work, cache, tile, first + kKeys);
  const int64_t size = work.call.block_size, count = smaller(kKeys, tile.end - first);
  int64_t block = first / size, row = first - block * size;
  for (int64_t k = 0; k < count; ++block, row = 0) {
    const char* at = row_at(work, cache, tile, block, row);
    const int64_t rows = smaller(size - row, count - k);
    float* room = found->room + k * cache.width;
    for (int64_t n = 0; n < rows; ++n, ++k) {
      found->at[k] = cache.in_place ? reinterpret_cast<const float*>(at + n * cache.position) : room + n * cache.width;
    }
    if (cache.in_place) continue;
    for (int64_t i = 0; i < cache.width; i += cache.piece_width, at += cache.piece) {
      cache.bring(at, cache.position, rows, cache.piece_width, work.narrow, room + i, cache.width);
    }
  }
  for (int64_t k = count; k < kKeys; ++k) found->at[k] = found->at[count - 1];
}

void score_keys(const Work& work, Tile& tile) {
  const Cache cache = cache_of(work.call, true);
  Sixteen keys;
  for (int64_t first = tile.begin; first < tile.end; first += kKeys) {
    find(work, cache, tile, first, &keys);
    float* scores = tile.scores + (first - tile.begin);
    int64_t row = 0;
    for (; row + kRowsTogether <= tile.rows; row += kRowsTogether) {
      dots<kRowsTogether>(tile.query + row, keys.at, cache.width, scores + row * kChunk);
    }
    for (; row < tile.rows; ++row) dots<1>(tile.query + row, keys.at, cache.width, scores + row * kChunk);
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
  Floats most = broadcast(-kInfinity);
  for (int64_t i = 0; i < count; i += kLanes) {
    Floats x = load(scores + i) * broadcast(factor);
    if (a.softcap != 0) x = soft_capped(x, a.softcap);
    const float distance = static_cast<float>(tile.begin + i - position);
    if (a.slopes != nullptr) x = fma(lane_numbers() + broadcast(distance), broadcast(slope), x);
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

void add_values(const Work& work, const Tile& tile, float* totals, int64_t stride) {
  const Cache cache = cache_of(work.call, false);
  Sixteen values;
  for (int64_t row = 0; row < tile.rows; ++row) {
    for (int64_t i = 0; i < cache.width; i += kLanes) store(totals + row * stride + i, broadcast(0));
  }
  for (int64_t first = tile.begin; first < tile.end; first += kKeys) {
    find(work, cache, tile, first, &values);
    const int64_t count = smaller(kKeys, tile.end - first);
    const float* weights = tile.scores + (first - tile.begin);
    int64_t row = 0;
    for (; row + kRowsTogether <= tile.rows; row += kRowsTogether) {
      add_values_to<kRowsTogether>(values.at, count, weights + row * kChunk, cache.width, totals + row * stride,
                                   stride);
    }
    for (; row < tile.rows; ++row) {
      add_values_to<1>(values.at, count, weights + row * kChunk, cache.width, totals + row * stride, stride);
    }
  }
}

void bring_queries(const Work& work, Tile& tile) {
  const Attention& a = work.call;
  const Bring bring = bring_for(a.dtype);  // its numbers are those of the first cache types
  for (int64_t row = 0; row < tile.rows; ++row) {
    const char* at = a.query + tile.sequence * a.query_sequence + (tile.first + row) / group_of(a) * a.query_token +
                     head_of(a, tile, row) * a.query_head;
    bring(at, 0, 1, a.key_width, nullptr, tile.query[row], 0);
  }
}

// Writes the sums of each row of a tile to `part`.
void attend_tile(const Work& work, Tile* tile, float* part) {
  const int64_t stride = work.call.value_width + 2;
  bring_queries(work, *tile);
  score_keys(work, *tile);
  for (int64_t row = 0; row < tile->rows; ++row) {
    weigh(work, *tile, row, tile->scores + row * kChunk, part + row * stride);
  }
  add_values(work, *tile, part, stride);
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
  Tile tile;
  int64_t place = 0;  // of the next item, in keys
  for (tile.sequence = 0; tile.sequence < a.sequences; ++tile.sequence) {
    const int64_t length = work.lengths[tile.sequence];
    const int64_t oldest = a.window != 0 ? larger(length - a.queries - a.window + 1, 0) : 0;
    int64_t part = work.starts[tile.sequence] * a.kv_heads * rows;  // the item's first
    for (int64_t first = oldest / kChunk * kChunk; first < length; first += kChunk) {
      tile.begin = larger(first, oldest);
      tile.end = smaller(first + kChunk, length);
      for (tile.kv_head = 0; tile.kv_head < a.kv_heads; ++tile.kv_head, part += rows) {
        const bool mine = place >= begin && place < end;
        place += tile.end - tile.begin;
        if (!mine) continue;
        for (tile.first = 0; tile.first < rows; tile.first += kRows) {
          tile.rows = smaller(kRows, rows - tile.first);
          attend_tile(work, &tile, work.parts + (part + tile.first) * stride);
        }
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
