// The rotation of heads on the CPU, sixteen pairs at a time, for every family that rotates. Compiled once per CPU
// level.
#pragma once

#include "../common/simd.h"
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

// Rotates the pairs of one head, which may be done in place. There is one loop for all kinds, because a loop per kind
// would be compiled for every dtype and level. The branches go the same way every time.
template <class T>
PRECAST_INLINE void rotate_head(const T* from, T* to, int64_t token, const Angles& a) {
  const int64_t row = table_row(a, token), half = a.half;
  const char *cos = a.cos + row * a.cos_stride, *sin = a.sin + row * a.sin_stride;
  const bool interleaved = (a.flags & kInterleaved) != 0, wide = (a.flags & kWideTable) != 0;
  const Floats sign = broadcast((a.flags & kInverse) != 0 ? -1.0f : 1.0f);
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t rest = half - i;
    const int64_t first = interleaved ? 2 * i : i, first_count = interleaved ? 2 * rest : rest;
    const int64_t second = first + (interleaved ? kLanes : half), second_count = interleaved ? 2 * rest - kLanes : rest;
    Pairs x = {load_upto(from + first, first_count), load_upto(from + second, second_count)};
    if (interleaved) x = separate(x);
    Pairs y = rotate(x, load_table<T>(cos, i, rest, wide), load_table<T>(sin, i, rest, wide) * sign);
    if (interleaved) y = join(y);
    store_upto(to + first, y.first, first_count);
    store_upto(to + second, y.second, second_count);
  }
}

}  // namespace precast::rotary::PRECAST_CPU_LEVEL
