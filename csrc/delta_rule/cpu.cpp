// The delta rule on the CPU, sixteen columns of the state at a time. Compiled once per CPU level.
//
// A work item has some columns of the state of one head in a buffer that fits into the first cache, and goes through
// the tokens of a sequence. A token takes one pass over the buffer: the correction of the token before, the decay, and
// the products with key and query. The query's result is corrected by key * query. No column needs another one, so the
// result does not depend on the number of threads.
#include "cpu.h"

#include "../cpu/exponential.h"

namespace precast::delta_rule::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

// Vectors side by side: their sums for key and query and their corrections stay in registers.
constexpr int kWide = PRECAST_WIDTH == 4 ? 1 : kBlockColumns / kLanes;
constexpr int64_t kStride = kBlockColumns;

struct Tile {
  float state[kMostKeyDim * kStride];
  float key[2][kMostKeyDim];  // of this token and of the one before
  float query[kMostKeyDim];
  float decay[kMostKeyDim];
  float delta[kStride], value[kStride], result[kStride];
};

PRECAST_RARE void bring(const char* from, int dtype, int64_t count, float* to) {
  with_type(dtype, [&](auto zero) {
    const auto* at = reinterpret_cast<const decltype(zero)*>(from);
    for (int64_t i = 0; i < count; i += kLanes) store(to + i, load_upto(at + i, count - i));
  });
}

PRECAST_RARE void put(char* to, int dtype, int64_t count, const float* from) {
  with_type(dtype, [&](auto zero) {
    auto* at = reinterpret_cast<decltype(zero)*>(to);
    for (int64_t i = 0; i < count; i += kLanes) store_upto(at + i, load(from + i), count - i);
  });
}

PRECAST_RARE float number(const Heads& heads, int64_t token, int64_t head, float absent) {
  if (heads.data == nullptr) return absent;
  float lane[kLanes];
  bring(heads.data + token * heads.token + head * heads.head, heads.dtype, 1, lane);
  return lane[0];
}

// The dot product of two vectors, which have zeros up to the next multiple of sixteen.
PRECAST_RARE float dot(const float* a, const float* b, int64_t count) {
  Floats total = broadcast(0);
  for (int64_t i = 0; i < count; i += kLanes) total = fma(load(a + i), load(b + i), total);
  return sum(total);
}

PRECAST_RARE void normalise(float* x, int64_t count) {
  float lane[kLanes];
  store(lane, broadcast(1) / sqrt(broadcast(dot(x, x, count)) + broadcast(kEps)));
  for (int64_t i = 0; i < count; i += kLanes) store(x + i, load(static_cast<const float*>(x + i)) * broadcast(lane[0]));
}

// The decay of each row of the state.
PRECAST_RARE void bring_decay(const Rule& a, int64_t token, int64_t head, Tile& tile) {
  const bool each = (a.flags & kKeyGates) != 0;
  float gate[kMostKeyDim];
  if (each) bring(a.g.data + token * a.g.token + head * a.g.head, a.g.dtype, a.key_dim, gate);
  const Floats all = broadcast(each ? 0 : number(a.g, token, head, 0));
  for (int64_t i = 0; i < a.key_dim; i += kLanes) {
    store(tile.decay + i, exponential(each ? load(static_cast<const float*>(gate + i)) : all));
  }
}

// One pass: corrects the state by the key of the token before, decays it, and sums its products with key and query.
PRECAST_RARE void take(const float* before, const float* key, Tile& tile, int64_t rows, int64_t column,
                       float* predicted, float* read) {
  Floats delta[kWide], with_key[kWide], with_query[kWide];
  PRECAST_UNROLLED
  for (int c = 0; c < kWide; ++c) {
    delta[c] = load(static_cast<const float*>(tile.delta + column + c * kLanes));
    with_key[c] = with_query[c] = broadcast(0);
  }
  float* state = tile.state + column;
  for (int64_t r = 0; r < rows; ++r, state += kStride) {
    const Floats last = broadcast(before[r]), decay = broadcast(tile.decay[r]);
    const Floats k = broadcast(key[r]), q = broadcast(tile.query[r]);
    PRECAST_UNROLLED
    for (int c = 0; c < kWide; ++c) {
      const Floats s = fma(last, delta[c], load(static_cast<const float*>(state + c * kLanes))) * decay;
      with_key[c] = fma(k, s, with_key[c]);
      with_query[c] = fma(q, s, with_query[c]);
      store(state + c * kLanes, s);
    }
  }
  PRECAST_UNROLLED
  for (int c = 0; c < kWide; ++c) {
    store(predicted + column + c * kLanes, with_key[c]);
    store(read + column + c * kLanes, with_query[c]);
  }
}

// Writes the columns of the state, corrected by the last key.
void put_state(const Rule& a, const Tile& tile, const float* key, char* to, int64_t columns) {
  float row[kStride];
  for (int64_t r = 0; r < a.key_dim; ++r, to += a.to.row) {
    for (int64_t i = 0; i < kStride; i += kLanes) {
      store(row + i, fma(broadcast(key[r]), load(tile.delta + i), load(tile.state + r * kStride + i)));
    }
    put(to, a.state_dtype, columns, row);
  }
}

void take_token(const Rule& a, int64_t token, int64_t head, int64_t column, int64_t columns, const float* before,
                float* key, Tile& tile) {
  const int64_t key_head = head / (a.value_heads / a.key_heads);
  bring(a.k.data + token * a.k.token + key_head * a.k.head, a.k.dtype, a.key_dim, key);
  bring(a.q.data + token * a.q.token + key_head * a.q.head, a.q.dtype, a.key_dim, tile.query);
  bring(a.v.data + token * a.v.token + head * a.v.head + column * (a.v.dtype == 0 ? 4 : 2), a.v.dtype, columns,
        tile.value);
  if ((a.flags & kL2Norm) != 0) {
    normalise(key, a.key_dim);
    normalise(tile.query, a.key_dim);
  }
  bring_decay(a, token, head, tile);
  float predicted[kStride], read[kStride];
  for (int64_t i = 0; i < kStride; i += kWide * kLanes) take(before, key, tile, a.key_dim, i, predicted, read);
  const Floats beta = broadcast(number(a.beta, token, head, 1)), both = broadcast(dot(key, tile.query, a.key_dim));
  for (int64_t i = 0; i < kStride; i += kLanes) {
    const Floats delta = beta * (load(static_cast<const float*>(tile.value + i)) - load(predicted + i));
    store(tile.delta + i, delta);
    store(tile.result + i, fma(both, delta, load(read + i)) * broadcast(a.scale));
  }
  put(a.out + ((token * a.value_heads + head) * a.value_dim + column) * (a.out_dtype == 0 ? 4 : 2), a.out_dtype,
      columns, tile.result);
}

void run_item(const Rule& a, int64_t sequence, int64_t head, int64_t column, Tile& tile) {
  const int64_t left = a.value_dim - column, columns = left < kStride ? left : kStride;
  const int64_t bytes = column * (a.state_dtype == 0 ? 4 : 2);
  int64_t begin = sequence * a.length, end = begin + a.length;
  if (a.starts != nullptr) {
    begin = integer_at(a.starts, sequence * a.starts_stride, (a.flags & kLongStarts) != 0);
    end = integer_at(a.starts, (sequence + 1) * a.starts_stride, (a.flags & kLongStarts) != 0);
  }
  const auto slot_of = [&](int64_t number) {
    if (a.indices == nullptr) return sequence;
    return integer_at(a.indices, sequence * a.index_sequence + number * a.index_token, (a.flags & kLongIndices) != 0);
  };
  int64_t first = 0;
  if (a.accepted != nullptr) {
    first = integer_at(a.accepted, sequence * a.accepted_stride, (a.flags & kLongAccepted) != 0) - 1;
  }
  const int64_t slot = slot_of(first);
  for (int64_t i = 0; i < kStride; i += kLanes) {
    store(tile.delta + i, broadcast(0));
    store(tile.value + i, broadcast(0));
    store(tile.result + i, broadcast(0));
  }
  if (slot < 0) {
    for (int64_t token = begin; token < end; ++token) {
      put(a.out + ((token * a.value_heads + head) * a.value_dim + column) * (a.out_dtype == 0 ? 4 : 2), a.out_dtype,
          columns, tile.result);
    }
    return;
  }
  const char* from = a.from.data + slot * a.from.slot + head * a.from.head + bytes;
  for (int64_t r = 0; r < a.key_dim; ++r, from += a.from.row) {
    float* row = tile.state + r * kStride;
    for (int64_t i = 0; i < kStride; i += kLanes) store(row + i, broadcast(0));
    if (a.from.data != nullptr) bring(from, a.state_dtype, columns, row);
  }
  for (float& one : tile.key[1]) one = 0;
  const auto put_to = [&](int64_t to, const float* key) {
    if (to >= 0) put_state(a, tile, key, a.to.data + to * a.to.slot + head * a.to.head + bytes, columns);
  };
  int64_t turn = 0;
  for (int64_t token = begin; token < end; ++token, turn ^= 1) {
    take_token(a, token, head, column, columns, tile.key[turn ^ 1], tile.key[turn], tile);
    if ((a.flags & kEachToken) != 0) put_to(slot_of(token - begin), tile.key[turn]);
  }
  if ((a.flags & kEachToken) == 0) put_to(slot, tile.key[turn ^ 1]);
}

}  // namespace

void run(const Rule& rule, int64_t begin, int64_t end) {
  const int64_t tiles = tiles_of(rule);
  Tile tile;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t unit = item / tiles;
    run_item(rule, unit / rule.value_heads, unit % rule.value_heads, item % tiles * kStride, tile);
  }
}

}  // namespace precast::delta_rule::PRECAST_CPU_LEVEL
