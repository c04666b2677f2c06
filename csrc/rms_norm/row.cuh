// What forward and backward share on the GPU.
#pragma once

#include "../common/device.cuh"
#include "args.h"

namespace precast {
namespace rms_norm {

// The numbers of precast::DType.
enum : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// What is added to the weight. Minus zero leaves every number as it is, a negative zero included.
DEVICE float weight_offset(int casting) { return casting == kGemma ? 1.0f : -0.0f; }

template <class T>
DEVICE float sum_of_squares(const Vector& v, float sum) {
  for_elements<T>(v, [&](int, float a) { sum = fmaf(a, a, sum); });
  return sum;
}

}  // namespace rms_norm
}  // namespace precast

// An entry point for blocks of up to `threads`. `resident` is how many threads a multiprocessor should hold at a time,
// which sets the budget: 65536 / resident registers for each.
#define KERNEL(name, Args, threads, resident, ...)                                         \
  extern "C" __global__ void __launch_bounds__(threads, PRECAST_BLOCKS(threads, resident)) \
      name(const precast::rms_norm::Args a) {                                              \
    using namespace precast;                                                               \
    rms_norm::__VA_ARGS__(a);                                                              \
  }
