// The rotation of heads on the CPU, sixteen pairs at a time, for the cpu.cpp of every family that rotates. Compiled
// once per CPU level.
#pragma once

#include "../common/simd.h"
#include "angles.h"

namespace precast::rotary::PRECAST_CPU_LEVEL {

using namespace ::precast::PRECAST_CPU_LEVEL;

// The row of the tables that a token takes: checked by the host, so within them.
PRECAST_INLINE int64_t table_row(const Angles& a, int64_t token) {
  if (a.positions == nullptr) return token;
  const char* at = a.positions + token * ((a.flags & kLongPositions) != 0 ? 8 : 4);
  if ((a.flags & kLongPositions) != 0) return *reinterpret_cast<const int64_t*>(at);
  return *reinterpret_cast<const int32_t*>(at);
}

// What stands before the sines.
PRECAST_INLINE Floats sign_of_sine(const Angles& a) { return broadcast((a.flags & kInverse) != 0 ? -1.0f : 1.0f); }

// Rounds as the GPU does; a product is never left for the compiler to fuse.
PRECAST_INLINE Pairs rotate(Pairs x, Floats cos, Floats sin) {
  const Floats minus = broadcast(-1.0f);
  return {fma(x.first, cos, x.second * sin * minus), fma(x.second, cos, x.first * sin)};
}

// The pairs of one head, which may be written where they are read.
template <class T, class Table>
PRECAST_INLINE void rotate_head(const T* from, T* to, const Table* cos, const Table* sin, const Angles& a) {
  const Floats sign = sign_of_sine(a);
  const int64_t half = a.half;
  if ((a.flags & kInterleaved) != 0) {
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t rest = half - i, begin = 2 * i, upper = begin + kLanes, over = 2 * rest - kLanes;
      const Pairs x = {load_upto(from + begin, 2 * rest), over > 0 ? load_upto(from + upper, over) : broadcast(0)};
      const Pairs y = join(rotate(separate(x), load_upto(cos + i, rest), load_upto(sin + i, rest) * sign));
      store_upto(to + begin, y.first, 2 * rest);
      if (over > 0) store_upto(to + upper, y.second, over);
    }
    return;
  }
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t rest = half - i;
    const Pairs x = {load_upto(from + i, rest), load_upto(from + half + i, rest)};
    const Pairs y = rotate(x, load_upto(cos + i, rest), load_upto(sin + i, rest) * sign);
    store_upto(to + i, y.first, rest);
    store_upto(to + half + i, y.second, rest);
  }
}

// The same for tables of float32, or of the dtype of the heads, as the angles say.
template <class T>
PRECAST_INLINE void rotate_head(const T* from, T* to, int64_t token, const Angles& a) {
  const int64_t row = table_row(a, token);
  const char *cos = a.cos + row * a.cos_stride, *sin = a.sin + row * a.sin_stride;
  if ((a.flags & kWideTable) != 0) {
    rotate_head(from, to, reinterpret_cast<const float*>(cos), reinterpret_cast<const float*>(sin), a);
  } else {
    rotate_head(from, to, reinterpret_cast<const T*>(cos), reinterpret_cast<const T*>(sin), a);
  }
}

}  // namespace precast::rotary::PRECAST_CPU_LEVEL
