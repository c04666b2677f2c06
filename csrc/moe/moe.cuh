// Shared by the kernels of both families.
#pragma once

#include "../common/device.cuh"
#include "../common/division.h"
#include "args.h"

namespace precast {
namespace moe {

constexpr u32 kAllLanes = 0xffffffffu;

// The greatest and the least number of a warp.
DEVICE u32 warp_greatest(u32 v) {
#if PRECAST_ARCH >= 800
  return __reduce_max_sync(kAllLanes, v);
#else
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) {
    const u32 other = __float_as_uint(__shfl_xor_sync(kAllLanes, __uint_as_float(v), distance));
    v = other > v ? other : v;
  }
  return v;
#endif
}

DEVICE u32 warp_least(u32 v) { return ~warp_greatest(~v); }

// NaN is ignored unless all are NaN.
DEVICE float warp_largest(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, distance));
  return v;
}

}  // namespace moe
}  // namespace precast

// An entry point for blocks of up to `threads`. `resident` is the number of threads that a multiprocessor should hold
// at a time. It sets the budget: 65536 / resident registers per thread.
#define KERNEL(name, Args, threads, resident, ...)                                         \
  extern "C" __global__ void __launch_bounds__(threads, PRECAST_BLOCKS(threads, resident)) \
      name(const precast::moe::Args a) {                                                   \
    using namespace precast;                                                               \
    using namespace precast::moe;                                                          \
    __VA_ARGS__(a);                                                                        \
  }
