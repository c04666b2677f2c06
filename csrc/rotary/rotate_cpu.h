// The rotation of heads on the CPU, sixteen pairs at a time, for every family that rotates. Compiled once per CPU
// level.
#pragma once

#include "../cpu/simd.h"
#include "angles.h"

namespace precast::rotary::PRECAST_CPU_LEVEL {

using namespace ::precast::PRECAST_CPU_LEVEL;

// The table row of a token. The host has checked that it is inside the tables.
PRECAST_INLINE int64_t table_row(const Angles& a, int64_t token) {
  if (a.positions == nullptr) return token;
  const char* at = a.positions + token * ((a.flags & kLongPositions) != 0 ? 8 : 4);
  if ((a.flags & kLongPositions) != 0) return *reinterpret_cast<const int64_t*>(at);
  return *reinterpret_cast<const int32_t*>(at);
}

// Rounds like the GPU. No product is left for the compiler to fuse.
PRECAST_INLINE Pairs rotate(Pairs x, Floats cos, Floats sin) {
  const Floats minus = broadcast(-1.0f);
  return {fma(x.first, cos, x.second * sin * minus), fma(x.second, cos, x.first * sin)};
}

// Loads numbers of a table, which are float32 or of the heads' dtype.
template <class T>
PRECAST_INLINE Floats load_table(const char* row, int64_t first, int64_t count, bool wide) {
  return wide ? load_upto(reinterpret_cast<const float*>(row) + first, count)
              : load_upto(reinterpret_cast<const T*>(row) + first, count);
}
template <>
PRECAST_METHOD Floats load_table<float>(const char* row, int64_t first, int64_t count, bool) {
  return load_upto(reinterpret_cast<const float*>(row) + first, count);
}

// The rounded product, which no compiler fuses with a sum.
PRECAST_INLINE Floats product(Floats a, Floats b) { return fma(a, b, broadcast(-0.0f)); }

// Rotates by the angles of both elements of a pair, in float32 or as torch's operators round in T.
template <class T>
PRECAST_INLINE Pairs rotate_both(Pairs x, Pairs cos, Pairs sin, bool each_product, const T* like) {
  const Floats minus = broadcast(-1.0f);
  if (!each_product) {
    return {fma(x.first, cos.first, x.second * sin.first * minus), fma(x.second, cos.second, x.first * sin.second)};
  }
  const Floats down = round_to(product(x.second, sin.first), like), up = round_to(product(x.first, sin.second), like);
  return {round_to(product(x.first, cos.first), like) - down, round_to(product(x.second, cos.second), like) + up};
}

// Rotates the pairs of one head, which may be done in place. There is one loop for all kinds, because a loop per kind
// would be compiled for every dtype and level. The branches go the same way every time.
template <class T>
PRECAST_INLINE void rotate_head(const T* from, T* to, int64_t token, const Angles& a) {
  const int64_t row = table_row(a, token), half = a.half;
  const char *cos = a.cos + row * a.cos_stride, *sin = a.sin + row * a.sin_stride;
  const bool interleaved = (a.flags & kInterleaved) != 0, wide = (a.flags & kWideTable) != 0;
  const bool whole = (a.flags & kWholeTable) != 0, both = (a.flags & (kWholeTable | kEachProduct)) != 0;
  const bool inverse = (a.flags & kInverse) != 0;
  const Floats sign = broadcast(inverse ? -1.0f : 1.0f);
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t rest = half - i;
    const int64_t first = interleaved ? 2 * i : i, first_count = interleaved ? 2 * rest : rest;
    const int64_t second = first + (interleaved ? kLanes : half), second_count = interleaved ? 2 * rest - kLanes : rest;
    Pairs x = {load_upto(from + first, first_count), load_upto(from + second, second_count)};
    if (interleaved) x = separate(x);
    Pairs y;
    if (both) {
      const int64_t other = whole ? half + i : i, here = whole && inverse ? other : i, there = here == i ? other : i;
      y = rotate_both(x, {load_table<T>(cos, i, rest, wide), load_table<T>(cos, other, rest, wide)},
                      {load_table<T>(sin, here, rest, wide) * sign, load_table<T>(sin, there, rest, wide) * sign},
                      (a.flags & kEachProduct) != 0, from);
    } else {
      y = rotate(x, load_table<T>(cos, i, rest, wide), load_table<T>(sin, i, rest, wide) * sign);
    }
    if (interleaved) y = join(y);
    store_upto(to + first, y.first, first_count);
    store_upto(to + second, y.second, second_count);
  }
}

}  // namespace precast::rotary::PRECAST_CPU_LEVEL
