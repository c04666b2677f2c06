// Numbers of all four dtypes on the CPU: blocks of floats, and of doubles for float64.
#pragma once

#include "../cpu/row_simd.h"
#include "args.h"

namespace precast::image::PRECAST_CPU_LEVEL {

using namespace ::precast::PRECAST_CPU_LEVEL;

template <class T>
struct RealOf {
  using Type = float;
};
template <>
struct RealOf<double> {
  using Type = double;
};

// Calls body(zero) with a zero of the dtype's type.
template <class Body>
PRECAST_INLINE void with_number(int dtype, const Body& body) {
  if (dtype == kFloat64) {
    body(0.0);
  } else {
    with_type(dtype, body);
  }
}

// Eight doubles, with the operations of a Block that float64 needs. Their memory order is the only one.
typedef double DoublePart __attribute__((vector_size(PRECAST_WIDTH * 4)));
struct Doubles {
  DoublePart part[kLanes / PRECAST_WIDTH];
};
constexpr int64_t kDoubles = kLanes / 2;

using ::precast::PRECAST_CPU_LEVEL::both;
using ::precast::PRECAST_CPU_LEVEL::fma;
using ::precast::PRECAST_CPU_LEVEL::in_memory_order;
using ::precast::PRECAST_CPU_LEVEL::in_order_of;
using ::precast::PRECAST_CPU_LEVEL::load_block;
using ::precast::PRECAST_CPU_LEVEL::store_block;

PRECAST_INLINE Doubles load_block(const double* from) {
  Doubles value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
PRECAST_INLINE void store_block(double* to, Doubles value) { __builtin_memcpy(to, &value, sizeof value); }
PRECAST_INLINE Doubles both(double value) {
#define PRECAST_PART(i) (value - DoublePart{})
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}
PRECAST_INLINE Doubles fma(Doubles a, Doubles b, Doubles c) {
#define PRECAST_PART(i) a.part[i] * b.part[i] + c.part[i]
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}
PRECAST_INLINE Doubles in_order_of(Doubles natural, const double*) { return natural; }
PRECAST_INLINE Doubles in_memory_order(Doubles value, const double*) { return value; }

// The first `count` of a vector's doubles.
struct SomeDoubles {
  int64_t count;
  PRECAST_METHOD Doubles load(const double* from) const {
    if (count >= kDoubles) return load_block(from);
    double lane[kDoubles] = {};
    copy<kDoubles>(lane, from, count);
    return load_block(static_cast<const double*>(lane));
  }
  PRECAST_METHOD void store(double* to, Doubles value) const {
    if (count >= kDoubles) return store_block(to, value);
    double lane[kDoubles];
    store_block(lane, value);
    copy<kDoubles>(to, static_cast<const double*>(lane), count);
  }
};

template <class T>
constexpr int64_t kStep = sizeof(T) == 8 ? kDoubles : kBlock;

// each_block() for every dtype.
template <class T, class Body>
PRECAST_INLINE void each_step(int64_t end, const Body& body) {
  if constexpr (sizeof(T) == 8) {
    for (int64_t i = 0; i < end; i += kDoubles) body(i, SomeDoubles{end - i});
  } else {
    each_block(0, end, body);
  }
}

}  // namespace precast::image::PRECAST_CPU_LEVEL
