// The rotation of heads on the GPU, for the kernels of every family that rotates: the places of pairs, a token's
// cosines and sines, and the rotation itself. A unit is one pair, or as many pairs as two vectors of 16 bytes hold.
#pragma once

#include "../common/device.cuh"
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

// Loads `kPairs` numbers of a table, which are float32 or of the heads' dtype.
template <class T, int kPairs>
DEVICE void load_table(const char* row, u32 unit, bool wide, float (&value)[kPairs]) {
  if constexpr (kPairs == 1) {
    value[0] =
        wide ? Float32::load(row + static_cast<i64>(unit) * 4) : T::load(row + static_cast<i64>(unit) * T::kBytes);
  } else if (wide) {
#pragma unroll
    for (int k = 0; k < kPairs / 4; ++k) {
      const Vector v = load_constant(row + (static_cast<i64>(unit) * (kPairs / 4) + k) * 16);
      for_elements<Float32>(v, [&](int i, float x) { value[k * 4 + i] = x; });
    }
  } else {
    for_elements<T>(load_constant(row + static_cast<i64>(unit) * 16), [&](int i, float x) { value[i] = x; });
  }
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

// Rotates the two vectors of a unit in place.
template <class T>
DEVICE void rotate(Vector& first, Vector& second, const Turn<T::kPerVector>& turn, bool interleaved) {
  constexpr int kPairs = T::kPerVector;
  float x[2 * kPairs];
  for_elements<T>(first, [&](int i, float v) { x[i] = v; });
  for_elements<T>(second, [&](int i, float v) { x[kPairs + i] = v; });
  if (interleaved) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) rotate(x[2 * i], x[2 * i + 1], turn.cos[i], turn.sin[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) rotate(x[i], x[kPairs + i], turn.cos[i], turn.sin[i]);
  }
  first = combine<T>(first, first, [&](int i, float, float) { return x[i]; });
  second = combine<T>(second, second, [&](int i, float, float) { return x[kPairs + i]; });
}

}  // namespace rotary
}  // namespace precast
