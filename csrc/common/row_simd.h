// What CPU kernels over rows share. Compiled once per CPU level, as simd.h is.
#pragma once

#include "simd.h"

namespace precast::PRECAST_CPU_LEVEL {

constexpr int64_t kSumBlock = 1024;  // elements whose sum is kept in float

PRECAST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>
PRECAST_INLINE Floats load_upto(const T* from, int64_t count) {
  return count >= kLanes ? load(from) : load_part(from, count);
}

template <class T>
PRECAST_INLINE void store_upto(T* to, Floats value, int64_t count) {
  if (count >= kLanes) {
    store(to, value);
  } else {
    store_part(to, value, count);
  }
}

// result[c] = round(sum over chunks, in a fixed order, of parts[chunk * stride + c]) for the columns [begin, end). No
// chunk: 0.
template <class T>
PRECAST_RARE void reduce_columns_to(const double* parts, int64_t chunks, int64_t stride, T* result, int64_t begin,
                                    int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t columns = smaller(kLanes, end - i);
    double total[kLanes] = {};
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t lane = 0; lane < columns; ++lane) total[lane] += parts[chunk * stride + i + lane];
    }
    float rounded[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) rounded[lane] = static_cast<float>(total[lane]);
    store_upto(result + i, load(static_cast<const float*>(rounded)), columns);
  }
}

// `dtype`: the number of a precast::DType.
PRECAST_RARE void reduce_columns(const double* parts, int64_t chunks, int64_t stride, void* result, int dtype,
                                 int64_t begin, int64_t end) {
  if (dtype == 0) {
    reduce_columns_to(parts, chunks, stride, static_cast<float*>(result), begin, end);
  } else if (dtype == 1) {
    reduce_columns_to(parts, chunks, stride, static_cast<f16*>(result), begin, end);
  } else {
    reduce_columns_to(parts, chunks, stride, static_cast<bf16*>(result), begin, end);
  }
}

}  // namespace precast::PRECAST_CPU_LEVEL
