// Shared by the norms on the GPU: several sums of a row at a time.
#pragma once

#include "../gpu/device.cuh"

namespace precast {

// The sums of N numbers each (2 or 4) over the threads that share a row; row_sum() computes one. Half of the lanes
// continue with half of the numbers: six shuffles for four sums instead of twenty. `shared` holds 32 N floats, aligned
// to 16 bytes, and must not be written again before another barrier.
template <int N>
DEVICE float warp_share(const float (&v)[N]) {
  static_assert(N == 2 || N == 4, "a lane keeps one of two or of four numbers");
  const bool upper = (threadIdx.x & 16) != 0;
  float sum, other;
  if constexpr (N == 4) {
    const float first = (upper ? v[2] : v[0]) + __shfl_xor_sync(0xffffffffu, upper ? v[0] : v[2], 16);
    const float second = (upper ? v[3] : v[1]) + __shfl_xor_sync(0xffffffffu, upper ? v[1] : v[3], 16);
    const bool odd = (threadIdx.x & 8) != 0;
    sum = odd ? second : first;
    other = odd ? first : second;
    sum += __shfl_xor_sync(0xffffffffu, other, 8);
  } else {
    sum = upper ? v[1] : v[0];
    other = upper ? v[0] : v[1];
    sum += __shfl_xor_sync(0xffffffffu, other, 16);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
  }
#pragma unroll
  for (int distance = 4; distance > 0; distance >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  return sum;
}

template <int N>
DEVICE void row_sums(float (&v)[N], float* shared) {
  if (blockDim.x < 32) {
#pragma unroll 1
    for (u32 distance = blockDim.x >> 1; distance > 0; distance >>= 1) {
#pragma unroll
      for (int n = 0; n < N; ++n) v[n] += __shfl_xor_sync(0xffffffffu, v[n], distance);
    }
    return;
  }
  if (blockDim.x == 32) {
#pragma unroll
    for (int n = 0; n < N; ++n) v[n] = warp_sum(v[n]);
    return;
  }
  // Each warp adds the warps' sums in the same way: each number has a group of lanes. The groups' lines begin at
  // different banks.
  constexpr u32 kGroup = 32 / N, kLine = 32 + kGroup;
  const u32 lane = threadIdx.x & 31, group = lane / kGroup, warps = blockDim.x >> 5;
  float sum = warp_share(v);
  if (lane % kGroup == 0) shared[group * kLine + (threadIdx.x >> 5)] = sum;
  __syncthreads();
  sum = 0.0f;
#pragma unroll 1
  for (u32 i = lane % kGroup; i < warps; i += kGroup) sum += shared[group * kLine + i];
#pragma unroll
  for (int distance = kGroup / 2; distance > 0; distance >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
#pragma unroll
  for (int n = 0; n < N; ++n) v[n] = __shfl_sync(0xffffffffu, sum, n * kGroup);
}

}  // namespace precast
