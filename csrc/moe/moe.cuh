// Shared by the kernels of both families.
#pragma once

#include "../gpu/early.cuh"
#include "args.h"

namespace precast {
namespace moe {

constexpr u32 kAllLanes = 0xffffffffu;

// The token that this row of threads handles.
DEVICE u32 this_token() { return blockIdx.x * blockDim.y + threadIdx.y; }

// Blocks along y share a row. The thread's first unit in it, and the distance to its next unit.
DEVICE u32 first_unit() { return blockIdx.y * blockDim.x + threadIdx.x; }
DEVICE u32 unit_step() { return gridDim.y * blockDim.x; }

// The expert of a pair; `experts` if it has none. Ids are int32 or int64.
DEVICE u32 bucket_at(const char* ids, int id_bytes, int experts, u32 pair) {
  const u32* words = reinterpret_cast<const u32*>(ids);
  const bool wide = id_bytes == 8;
  const u64 at = wide ? 2 * static_cast<u64>(pair) : pair;
  const u32 low = words[at], high = wide ? words[at + 1] : 0;
  return high == 0 && low < static_cast<u32>(experts) ? low : static_cast<u32>(experts);
}

// The maximum and the minimum over a warp.
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

DEVICE int warp_count(int v) {
#if PRECAST_ARCH >= 800
  return __reduce_add_sync(kAllLanes, v);
#else
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(kAllLanes, v, distance);
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
