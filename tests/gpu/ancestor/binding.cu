// The device code of rms_norm as the ancestor would build it: nvcc, torch/extension.h, pybind11. The same file serves
// CUDAExtension in setup.py and torch.utils.cpp_extension.load; `csrc` is on the include path.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include "norm/rms_norm.cu"

namespace {

using Kernel = void (*)(precast::rms_norm::ForwardArgs);

Kernel kernel_for(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat:
      return precast::rms_norm::rms_norm_f32_v4;
    case torch::kHalf:
      return precast::rms_norm::rms_norm_f16_v4;
    case torch::kBFloat16:
      return precast::rms_norm::rms_norm_bf16_v4;
    default:
      TORCH_CHECK(false, "float32, float16 or bfloat16, not ", dtype);
  }
}

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double eps) {
  TORCH_CHECK(x.is_cuda() && x.dim() == 2 && x.is_contiguous() && weight.is_contiguous(), "contiguous CUDA tensors");
  const c10::cuda::CUDAGuard guard(x.device());
  torch::Tensor y = torch::empty_like(x);
  precast::rms_norm::ForwardArgs args{};
  args.x = static_cast<const char*>(x.const_data_ptr());
  args.weight = static_cast<const char*>(weight.const_data_ptr());
  args.y = static_cast<char*>(y.mutable_data_ptr());
  args.hidden = x.size(1);
  args.x_stride = args.y_stride = x.size(1) * x.element_size();
  args.rows = static_cast<unsigned>(x.size(0));
  args.vectors = static_cast<unsigned>(args.x_stride / 16);
  args.inverse_hidden = 1.0f / static_cast<float>(x.size(1));
  args.eps = static_cast<float>(eps);
  const unsigned threads = (args.vectors / 4 + 31) / 32 * 32;  // four vectors in each
  TORCH_CHECK(args.x_stride % 16 == 0 && threads * 4 >= args.vectors, "rows of whole 16-byte vectors");
  kernel_for(x.scalar_type())<<<args.rows, threads, 0, c10::cuda::getCurrentCUDAStream()>>>(args);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("rms_norm", &rms_norm); }
