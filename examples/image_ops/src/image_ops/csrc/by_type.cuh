// From the element type that a tensor has to the types that a kernel is made for.
#pragma once

#include <cuda_runtime.h>

#include "scalar.h"

namespace image_ops {

template <typename Element, typename Sum>
struct Types {};

// Calls `launch` with the Types of a kernel; half types are summed in float32. Returns a cudaError_t.
template <typename Launch>
int launch_by_type(Scalar type, const Launch& launch) {
  switch (type) {
    case Scalar::kFloat32:
      launch(Types<float, float>());
      break;
    case Scalar::kFloat64:
      launch(Types<double, double>());
      break;
    case Scalar::kFloat16:
      launch(Types<__half, float>());
      break;
    case Scalar::kBFloat16:
      launch(Types<__nv_bfloat16, float>());
      break;
  }
  return cudaGetLastError();
}

}  // namespace image_ops
