// The rotation of heads on the GPU, for the kernels of every family that rotates: the places of pairs, a token's
// cosines and sines, and the rotation itself. A unit is one pair, or as many pairs as two vectors of 16 bytes hold.
#pragma once

#include "../gpu/device.cuh"
#include "../rotary/angles.h"  // the same path everywhere: NVRTC treats two paths as two files

namespace precast {
namespace rotary {

// The table row of a token, or -1 for a position outside of the tables.
DEVICE i64 table_row(const Angles& a, i64 token) {
  if (a.positions == nullptr) return token;
  const i64 row = (a.flags & kLongPositions) != 0 ? *reinterpret_cast<const i64*>(a.positions + token * 8)
                                                  : *reinterpret_cast<const int*>(a.positions + token * 4);
  return row >= 0 && row < a.rows ? row : -1;
}

// The two parts of a unit, as byte offsets within a head. Units count first through the pairs, `kPairs` at a time, and
// then through the elements that are not rotated. The second part of the last unit may lie beyond the head.
struct Parts {
  u32 first, second;
  bool rotated;
};

// The parts of a head that is not rotated.
template <class T, int kPairs>
DEVICE Parts plain_parts(u32 unit) {
  return {2 * unit * kPairs * T::kBytes, (2 * unit + 1) * kPairs * T::kBytes, false};
}

template <class T, int kPairs>
DEVICE Parts parts_of(const Angles& a, u32 unit) {
  const u32 half = static_cast<u32>(a.half);
  const bool rotated = unit * kPairs < half;
  const bool apart = rotated && (a.flags & kInterleaved) == 0;
  const u32 first = (apart ? unit : 2 * unit) * kPairs, second = first + (apart ? half : kPairs);
  return {first * T::kBytes, second * T::kBytes, rotated};
}

// The cosines and sines of a unit's pairs. They are NaN for a position outside of the tables, so that nothing is read
// there and the error shows in the result.
template <int kPairs>
struct Turn {
  float cos[kPairs], sin[kPairs];
};

template <int kPairs>
DEVICE Turn<kPairs> no_turn() {
  Turn<kPairs> turn;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) turn.cos[i] = turn.sin[i] = __uint_as_float(0x7fc00000u);
  return turn;
}

// A part of 8 or 4 bytes, for heads of which only these are aligned; parts of 16 are a Vector.
template <int kWords>
struct alignas(4 * kWords) Words {
  u32 word[kWords];
};

template <int kBytes>
struct PartOf {
  using Type = Words<kBytes / 4>;
};
template <>
struct PartOf<16> {
  using Type = Vector;
};
template <int kBytes>
using Part = typename PartOf<kBytes>::Type;

template <int kWords>
DEVICE void load_part(const char* p, Words<kWords>& part) {
  part = *reinterpret_cast<const Words<kWords>*>(p);
}
DEVICE void load_part(const char* p, Vector& part) { part = load(p); }

template <int kWords>
DEVICE void store(char* p, const Words<kWords>& part) {
  *reinterpret_cast<Words<kWords>*>(p) = part;
}
using precast::store;

// Calls body(i, value) for each element.
template <class T, class P, class Body>
DEVICE void for_part(const P& part, const Body& body) {
#pragma unroll
  for (int k = 0; k < static_cast<int>(sizeof(P) / 4); ++k) {
    float element[T::kPerWord];
    T::unpack(part.word[k], element);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) body(k * T::kPerWord + e, element[e]);
  }
}

// Loads `kPairs` numbers of a table, which has them at a multiple of their size, or of 16 bytes.
template <class T, int kPairs>
DEVICE void load_numbers(const char* p, float (&value)[kPairs]) {
  constexpr int kBytes = kPairs * T::kBytes;
  if constexpr (kPairs == 1) {
    value[0] = T::load(p);
  } else if constexpr (kBytes >= 16) {
#pragma unroll
    for (int k = 0; k < kBytes / 16; ++k) {
      const Vector v = load_constant(p + k * 16);
      for_elements<T>(v, [&](int i, float x) { value[k * T::kPerVector + i] = x; });
    }
  } else {
    Part<kBytes> part;
    load_part(p, part);
    for_part<T>(part, [&](int i, float x) { value[i] = x; });
  }
}

// The numbers of a table, which are float32 or of the heads' dtype.
template <class T, int kPairs>
DEVICE void load_table(const char* row, u32 unit, bool wide, float (&value)[kPairs]) {
  const i64 first = static_cast<i64>(unit) * kPairs;
  if (wide) return load_numbers<Float32>(row + first * 4, value);
  load_numbers<T>(row + first * T::kBytes, value);
}

// `row` is the result of table_row(). Call that before the heads are loaded, because the loads of the tables depend on
// it.
template <class T, int kPairs>
DEVICE Turn<kPairs> load_turn_of_row(const Angles& a, i64 row, u32 unit) {
  if (row < 0) return no_turn<kPairs>();
  const bool wide = (a.flags & kWideTable) != 0;
  Turn<kPairs> turn;
  load_table<T>(a.cos + row * a.cos_stride, unit, wide, turn.cos);
  load_table<T>(a.sin + row * a.sin_stride, unit, wide, turn.sin);
  if ((a.flags & kInverse) != 0) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) turn.sin[i] = -turn.sin[i];
  }
  return turn;
}

template <class T, int kPairs>
DEVICE Turn<kPairs> load_turn(const Angles& a, i64 token, u32 unit) {
  return load_turn_of_row<T, kPairs>(a, table_row(a, token), unit);
}

// Rotates one pair. Every kernel, and the CPU kernels with fused multiply-add, round in the same way.
DEVICE void rotate(float& x, float& y, float cos, float sin) {
  const float turned = fmaf(x, cos, -(y * sin));
  y = fmaf(y, cos, x * sin);
  x = turned;
}

// Calls body(i, x, y) with the elements of each pair of a unit, which it may change.
template <class T, class P, class Body>
DEVICE void for_pairs(P& first, P& second, bool interleaved, const Body& body) {
  constexpr int kPairs = sizeof(P) / T::kBytes;
  float x[2 * kPairs];
  for_part<T>(first, [&](int i, float v) { x[i] = v; });
  for_part<T>(second, [&](int i, float v) { x[kPairs + i] = v; });
  if (interleaved) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) body(i, x[2 * i], x[2 * i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) body(i, x[i], x[kPairs + i]);
  }
  const auto pack = [&](P& part, int from) {
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(P) / 4); ++k) {
      float element[T::kPerWord];
#pragma unroll
      for (int e = 0; e < T::kPerWord; ++e) element[e] = x[from + k * T::kPerWord + e];
      part.word[k] = T::pack(element);
    }
  };
  pack(first, 0);
  pack(second, kPairs);
}

// Rotates the two parts of a unit in place.
template <class T, class P>
DEVICE void rotate(P& first, P& second, const Turn<sizeof(P) / T::kBytes>& turn, bool interleaved) {
  for_pairs<T>(first, second, interleaved, [&](int i, float& x, float& y) { rotate(x, y, turn.cos[i], turn.sin[i]); });
}

}  // namespace rotary
}  // namespace precast
