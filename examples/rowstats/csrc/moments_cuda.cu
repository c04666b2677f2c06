#include <cuda_runtime.h>

#include "rowstats.h"

namespace rowstats {
namespace {

constexpr int kThreads = 256;

// The sum of a value of each thread, in all of them.
__device__ double block_sum(double value, double* shared) {
  for (int far = warpSize / 2; far > 0; far /= 2) value += __shfl_xor_sync(0xffffffffu, value, far);
  __syncthreads();  // the warps may still be reading the sums of the last call
  if (threadIdx.x % warpSize == 0) shared[threadIdx.x / warpSize] = value;
  __syncthreads();
  double sum = 0;
  for (int warp = 0; warp < kThreads / warpSize; ++warp) sum += shared[warp];
  return sum;
}

// A block for each row.
__global__ void __launch_bounds__(kThreads)
    moments_kernel(const float* rows, int64_t count, int64_t columns, float* out) {
  __shared__ double shared[kThreads / 32];
  for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const float* values = rows + row * columns;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < columns; i += kThreads) sum += values[i];
    const double mean = block_sum(sum, shared) / static_cast<double>(columns);
    double squares = 0;
    for (int64_t i = threadIdx.x; i < columns; i += kThreads) squares += (values[i] - mean) * (values[i] - mean);
    const double variance = block_sum(squares, shared) / static_cast<double>(columns);
    if (threadIdx.x == 0) {
      out[2 * row] = static_cast<float>(mean);
      out[2 * row + 1] = static_cast<float>(variance);
    }
  }
}

}  // namespace

int moments_cuda(const float* rows, int64_t count, int64_t columns, float* out, void* stream) {
  const int64_t blocks = count < (int64_t{1} << 20) ? count : int64_t{1} << 20;
  moments_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(rows, count,
                                                                                                    columns, out);
  return cudaGetLastError();
}

}  // namespace rowstats
