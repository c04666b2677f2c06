// Stores keys and values of tokens in a paged cache on the GPU, unchanged or rotated. See host.cpp for which kernel
// serves which call. A slot outside of the caches is never written.
#include "../rotary/norm_rotate.cuh"
#include "cache.cuh"
#include "entries.h"

namespace precast {
namespace kv_cache {

// ---- unchanged: bytes without a dtype ----
// A row of threads handles a token. Each thread handles the same units of the token's key and of its value.

template <class Unit>
struct Pair {
  Unit key, value;
};

template <class Unit>
DEVICE Pair<Unit> read_pair(const CopyArgs& a, i64 token, i64 head, i64 byte) {
  Pair<Unit> pair;
  pair.key = read_unit<Unit>(a.key.data + token * a.key.token + head * a.key.head + byte);
  if (a.value_cache.data != nullptr) {
    pair.value = read_unit<Unit>(a.value.data + token * a.value.token + head * a.value.head + byte);
  }
  return pair;
}

// Writes a unit of a head to its piece.
template <class Unit>
DEVICE void write_piece(const Cache& cache, char* position, const Division& piece_units, i64 head, u32 unit, Unit v) {
  const u32 piece = quotient(unit, piece_units), within = unit - piece * piece_units.divisor;
  write_unit(position + head * cache.head + piece * cache.piece + within * static_cast<u32>(sizeof(Unit)), v);
}

template <class Unit>
DEVICE void copy_token(const CopyArgs& a) {
  constexpr u32 kBytes = sizeof(Unit);
  const u32 token = blockIdx.x * blockDim.y + threadIdx.y;
  u32 unit = threadIdx.x;
  if (token >= a.tokens || unit >= a.units) return;
  const i64 slot = a.slots.data[token * a.slots.stride];
  u32 head = quotient(unit, a.head_units), within = unit - head * a.head_units.divisor;
  Pair<Unit> pair = read_pair<Unit>(a, token, head, within * kBytes);  // loads while the slot is loaded
  const Place place = place_of(a.slots, slot);
  if (!place.inside) return;
  char *key_cache = at_place(a.key_cache, place), *value_cache = at_place(a.value_cache, place);
  for (;;) {
    write_piece(a.key_cache, key_cache, a.key_piece_units, head, within, pair.key);
    if (a.value_cache.data != nullptr) {
      write_piece(a.value_cache, value_cache, a.value_piece_units, head, within, pair.value);
    }
    unit += blockDim.x;
    if (unit >= a.units) return;
    head = quotient(unit, a.head_units);
    within = unit - head * a.head_units.divisor;
    pair = read_pair<Unit>(a, token, head, within * kBytes);
  }
}

DEVICE void copy_units(const CopyArgs& a) {
  if (a.unit_bytes == 16) return copy_token<Vector>(a);
  if (a.unit_bytes == 8) return copy_token<u64>(a);
  if (a.unit_bytes == 4) return copy_token<u32>(a);
  copy_token<u16>(a);
}

// ---- rotated on the way ----
// A thread handles one unit of one head of query, key or value: two vectors of 16 bytes, or two elements. Query and key
// are rotated in place by the shared rotation; the rotated key and the value also go to the cache.

template <class T, int kPairs>
struct UnitOf {
  using type = Vector;
};
template <class T>
struct UnitOf<T, 1> {
  using type = u16;
};
template <>
struct UnitOf<Float32, 1> {
  using type = u32;
};

template <class T>
DEVICE void rotate_unit(Vector& first, Vector& second, const rotary::Turn<T::kPerVector>& turn, bool interleaved) {
  rotary::rotate<T>(first, second, turn, interleaved);
}

// The bits of two elements.
template <class T, class Bits>
DEVICE void rotate_unit(Bits& first, Bits& second, const rotary::Turn<1>& turn, bool) {
  float x = T::load(reinterpret_cast<const char*>(&first)), y = T::load(reinterpret_cast<const char*>(&second));
  rotary::rotate(x, y, turn.cos[0], turn.sin[0]);
  T::store(reinterpret_cast<char*>(&first), x);
  T::store(reinterpret_cast<char*>(&second), y);
}

// The head and unit of a thread.
struct Head {
  const char* from;
  i64 token;
  i64 number;  // among the heads of its tensor
  u32 unit;
  bool is_query, is_value;
};

DEVICE Head head_of(const RotateArgs& a, u32 index) {
  const u32 row = quotient(index, a.units);
  const u32 local = quotient(row, a.heads), number = row - local * a.heads.divisor;
  const bool is_query = number < a.query_heads, is_value = number >= a.rotated_heads;
  const i64 token = a.first_token + local;
  // Reads the fields of all tensors and keeps some: selecting an address would copy the arguments.
  const i64 head = is_query ? number : number - (is_value ? a.rotated_heads : a.query_heads);
  const char* from = is_query ? a.query.data : is_value ? a.value.data : a.key.data;
  from += token * (is_query   ? a.query.token
                   : is_value ? a.value.token
                              : a.key.token) +
          head * (is_query   ? a.query.head
                  : is_value ? a.value.head
                             : a.key.head);
  return {from, token, head, index - row * a.units.divisor, is_query, is_value};
}

DEVICE i64 slot_of(const RotateArgs& a, const Head& at) {
  return at.is_query ? -1 : a.slots.data[at.token * a.slots.stride];
}

// A head of key or value in its cache.
struct Cached {
  char* head;
  i64 piece;  // the distance between pieces
  Division piece_bytes;

  DEVICE char* at(u32 byte) const {
    const u32 number = quotient(byte, piece_bytes);
    return head + number * piece + (byte - number * piece_bytes.divisor);
  }
};

DEVICE Cached cached(const RotateArgs& a, const Head& at, const Place& place) {
  Cached found;
  found.head = (at.is_value ? at_place(a.value_cache, place) : at_place(a.key_cache, place)) +
               at.number * (at.is_value ? a.value_cache.head : a.key_cache.head);
  found.piece = at.is_value ? a.value_cache.piece : a.key_cache.piece;
  found.piece_bytes.divisor = at.is_value ? a.value_piece_bytes.divisor : a.key_piece_bytes.divisor;
  found.piece_bytes.multiplier = at.is_value ? a.value_piece_bytes.multiplier : a.key_piece_bytes.multiplier;
  found.piece_bytes.shift = at.is_value ? a.value_piece_bytes.shift : a.key_piece_bytes.shift;
  return found;
}

template <class T, int kPairs>
DEVICE void rotate_and_cache(const RotateArgs& a) {
  using Unit = typename UnitOf<T, kPairs>::type;
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.total) return;
  const Head at = head_of(a, index);
  const rotary::Parts parts =
      at.is_value ? rotary::plain_parts<T, kPairs>(at.unit) : rotary::parts_of<T, kPairs>(a.angles, at.unit);
  if (at.is_query && !parts.rotated) return;  // already in place
  const i64 slot = slot_of(a, at);
  const i64 table = parts.rotated ? rotary::table_row(a.angles, at.token) : -1;
  const bool both = parts.second < a.head_bytes;
  // No branch, so that one load does not wait for the other.
  Unit first = fetch_unit<Unit>(at.from + parts.first);
  Unit second = fetch_unit<Unit>(at.from + (both ? parts.second : parts.first));
  if (parts.rotated) {
    const auto turn = rotary::load_turn_of_row<T, kPairs>(a.angles, table, at.unit);
    rotate_unit<T>(first, second, turn, (a.angles.flags & rotary::kInterleaved) != 0);
    char* to = const_cast<char*>(at.from);
    write_unit(to + parts.first, first);
    write_unit(to + parts.second, second);
  }
  const Place place = place_of(a.slots, slot);
  if (!place.inside) return;
  const Cached to = cached(a, at, place);
  write_unit(to.at(parts.first), first);
  if (both) write_unit(to.at(parts.second), second);
}

// ---- normalised and rotated ----

DEVICE const char* weight_of(const NormRotateArgs& a, const Head& at) {
  return at.is_value ? nullptr : at.is_query ? a.norm.query_weight : a.norm.key_weight;
}

// Two vectors of a head.
template <class T, bool kWords = false>
DEVICE void norm_rotate_and_cache(const NormRotateArgs& a) {
  constexpr int kPairs = T::kPerVector;
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  const bool inside = index < a.rotate.total;  // all lanes of a warp add up squares
  const Head at = head_of(a.rotate, inside ? index : 0);
  const rotary::Angles& angles = a.rotate.angles;
  const rotary::Parts parts =
      at.is_value ? rotary::plain_parts<T, kPairs>(at.unit) : rotary::parts_of<T, kPairs>(angles, at.unit);
  const bool here = inside && parts.first < a.rotate.head_bytes, both = here && parts.second < a.rotate.head_bytes;
  const i64 slot = slot_of(a.rotate, at);
  const i64 table = at.is_value ? -1 : rotary::table_row(angles, at.token);
  Vector first = load(at.from + (here ? parts.first : 0)), second = load(at.from + (both ? parts.second : 0));
  rotary::norm_and_rotate<T, kWords>(angles, a.norm, weight_of(a, at), parts, here, both, a.rotate.units.divisor, table,
                                     at.unit, first, second);
  if (!here) return;
  if (!at.is_value) {
    char* to = const_cast<char*>(at.from);
    store(to + parts.first, first);
    if (both) store(to + parts.second, second);
  }
  const Place place = place_of(a.rotate.slots, slot);
  if (!place.inside) return;
  const Cached to = cached(a.rotate, at, place);
  store(to.at(parts.first), first);
  if (both) store(to.at(parts.second), second);
}

// Any head, by a warp.
template <class T>
DEVICE void norm_rotate_and_cache_any(const NormRotateArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.rotate.total) return;  // whole warps
  const Head at = head_of(a.rotate, index);
  const rotary::Angles& angles = a.rotate.angles;
  const u32 bytes = a.rotate.head_bytes;
  const i64 table = at.is_value ? -1 : rotary::table_row(angles, at.token);
  const Place place = place_of(a.rotate.slots, slot_of(a.rotate, at));
  const Cached to = cached(a.rotate, at, place);
  const char* weight = weight_of(a, at);
  const float r = weight == nullptr ? 0.0f : rotary::inverse_rms_of<T>(at.from, bytes, a.norm);
  char* own = const_cast<char*>(at.from);
  for (u32 unit = at.unit;; unit += 32) {
    const rotary::Parts parts = at.is_value ? rotary::plain_parts<T, 1>(unit) : rotary::parts_of<T, 1>(angles, unit);
    if (parts.first >= bytes) return;
    const bool both = parts.second < bytes;
    float x = T::load(own + parts.first), y = both ? T::load(own + parts.second) : 0.0f;
    rotary::PairTurn<T>(angles, a.norm, weight, parts, both, table, unit).apply(r, x, y);
    if (!at.is_value) {
      T::store(own + parts.first, x);
      if (both) T::store(own + parts.second, y);
    }
    if (!place.inside) continue;
    T::store(to.at(parts.first), x);
    if (both) T::store(to.at(parts.second), y);
  }
}

KV_CACHE_KERNELS(KERNEL)

}  // namespace kv_cache
}  // namespace precast
