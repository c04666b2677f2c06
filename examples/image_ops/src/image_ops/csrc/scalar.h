// Element types, for code that sees torch and code that does not: a .cu without torch's headers compiles in seconds.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define IMAGE_OPS_BOTH __host__ __device__
#else
#define IMAGE_OPS_BOTH
#endif

namespace image_ops {

enum class Scalar { kFloat32, kFloat64, kFloat16, kBFloat16 };

#ifdef __CUDACC__
// By name, as torch compiles .cu files with the implicit conversions of half types switched off.
__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__device__ T narrow(float x) {
  return x;
}
template <typename T>
__device__ T narrow(double x) {
  return x;
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
#endif

}  // namespace image_ops
