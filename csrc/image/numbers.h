// Numbers of all four dtypes on the CPU, as float or, for float64, as double.
#pragma once

#include "../common/row_simd.h"
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

// Converts `count` numbers. A float buffer must have room for the next multiple of 16.
template <class T>
PRECAST_INLINE void read(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load_upto(from + i, count - i));
}
PRECAST_INLINE void read(const double* from, int64_t count, double* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}
template <class T>
PRECAST_INLINE void write(T* to, int64_t count, const float* from) {
  for (int64_t i = 0; i < count; i += kLanes) store_upto(to + i, load(from + i), count - i);
}
PRECAST_INLINE void write(double* to, int64_t count, const double* from) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

}  // namespace precast::image::PRECAST_CPU_LEVEL
