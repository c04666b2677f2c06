// What the norms share on the GPU: two sums of a row at a time, the sums of columns, the form of an entry point.
#pragma once

#include "device.cuh"

namespace precast {

// The numbers of precast::DType.
enum : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// As row_sum(): two sums with one barrier. `shared` holds 64 floats, aligned to 16 bytes.
struct TwoSums {
  float first, second;
};

DEVICE TwoSums row_sums(float first, float second, float* shared) {
  first = warp_sum(first);
  second = warp_sum(second);
  if (blockDim.x == 32) return {first, second};
  const u32 warps = blockDim.x >> 5;
  if ((threadIdx.x & 31) == 0) {
    shared[(threadIdx.x >> 5) * 2] = first;
    shared[(threadIdx.x >> 5) * 2 + 1] = second;
  }
  __syncthreads();
  const float2* pairs = reinterpret_cast<const float2*>(shared);
  TwoSums sums{0.0f, 0.0f};
  for (u32 i = 0; i < warps; ++i) {
    const float2 pair = pairs[i];
    sums.first += pair.x;
    sums.second += pair.y;
  }
  return sums;
}

// result[c] = round(sum of parts[i][c] over the lines i). 32 columns per block; 32 threads add the lines of a column,
// then their sums are added in order.
DEVICE void add_columns(const float* parts, i64 columns, u32 lines, char* result, int dtype) {
  __shared__ float shared[32][33];
  const i64 column = static_cast<i64>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
    for (u32 i = threadIdx.y; i < lines; i += 32) sum += parts[i * columns + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int i = 1; i < 32; ++i) sum += shared[i][threadIdx.x];
  if (dtype == kFloat32) Float32::store(result + column * 4, sum);
  if (dtype == kFloat16) Float16::store(result + column * 2, sum);
  if (dtype == kBFloat16) BFloat16::store(result + column * 2, sum);
}

}  // namespace precast

// An entry point for blocks of up to `threads`. `resident` is how many threads a multiprocessor should hold at a time,
// which sets the budget: 65536 / resident registers for each. NORM_NAMESPACE is the family's.
#define KERNEL(name, Args, threads, resident, ...)                                         \
  extern "C" __global__ void __launch_bounds__(threads, PRECAST_BLOCKS(threads, resident)) \
      name(const precast::NORM_NAMESPACE::Args a) {                                        \
    using namespace precast;                                                               \
    NORM_NAMESPACE::__VA_ARGS__(a);                                                        \
  }
