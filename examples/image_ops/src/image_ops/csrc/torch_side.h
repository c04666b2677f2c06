// What both bindings need of torch. Not torch/extension.h: it takes 20 seconds of every compile, and this takes 5.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include "scalar.h"

#ifdef WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace image_ops {

inline Scalar scalar_of(const at::Tensor& tensor, const char* who) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Scalar::kFloat32;
    case at::kDouble:
      return Scalar::kFloat64;
    case at::kHalf:
      return Scalar::kFloat16;
    case at::kBFloat16:
      return Scalar::kBFloat16;
    default:
      TORCH_CHECK(false, who, ": input is ", tensor.scalar_type(), "; it takes float32, float64, float16 and bfloat16");
  }
}

inline void check_device(const at::Tensor& tensor, const char* who) {
#ifdef WITH_CUDA
  const bool served = tensor.is_cpu() || tensor.is_cuda();
#else
  const bool served = tensor.is_cpu();
#endif
  TORCH_CHECK(served, who, ": input is on ", tensor.device(), ", for which this extension was not built");
}

}  // namespace image_ops
