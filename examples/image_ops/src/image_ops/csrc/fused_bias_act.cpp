#include "fused_bias_act.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "torch_side.h"

namespace image_ops {
namespace {

constexpr const char* kName = "fused_bias_act";
constexpr int64_t kGrain = 1 << 14;  // elements for one thread

template <typename T>
void bias_act_cpu(const BiasAct& work) {
  using Acc = at::opmath_type<T>;
  const T* input = static_cast<const T*>(work.input);
  const T* bias = static_cast<const T*>(work.bias);
  const T* refer = static_cast<const T*>(work.refer);
  T* out = static_cast<T*>(work.out);
  const Acc alpha = static_cast<Acc>(work.alpha), scale = static_cast<Acc>(work.scale);
  const int act = work.act, grad = work.grad;
  at::parallel_for(0, work.elements, kGrain, [&](int64_t begin, int64_t end) {
    // Plane by plane: one bias for all of its elements, so that the loops over them are plain ones, which compilers
    // vectorize. Minus zero is the number that changes nothing.
    for (int64_t i = begin; i < end;) {
      const int64_t plane = i / work.inner, stop = std::min(end, (plane + 1) * work.inner);
      const Acc shift = bias ? static_cast<Acc>(bias[plane % work.channels]) : static_cast<Acc>(-0.0);
      for (; refer && i < stop; ++i) {
        const Acc u = static_cast<Acc>(input[i]) + shift, at = static_cast<Acc>(refer[i]);
        out[i] = static_cast<T>(bias_act_element(u, at, act, grad, alpha, scale));
      }
      for (; i < stop; ++i) {
        const Acc u = static_cast<Acc>(input[i]) + shift;
        out[i] = static_cast<T>(bias_act_element(u, u, act, grad, alpha, scale));
      }
    }
  });
}

void check(const at::Tensor& input, const at::Tensor& bias, const at::Tensor& refer, int64_t act, int64_t grad) {
  check_device(input, kName);
  TORCH_CHECK_VALUE(act == kLinear || act == kLeakyRelu, kName, ": act is ", act, "; 1 is linear, 3 is leaky ReLU");
  TORCH_CHECK_VALUE(grad >= 0 && grad <= 2, kName, ": grad is ", grad, "; it is 0, 1 or 2");
  if (bias.numel() > 0) {
    TORCH_CHECK(input.dim() >= 2 && bias.dim() == 1 && bias.size(0) == input.size(1), kName, ": bias is ", bias.sizes(),
                "; an input of ", input.sizes(), " needs one value for each entry of its dimension 1");
    TORCH_CHECK(bias.scalar_type() == input.scalar_type() && bias.device() == input.device(), kName, ": bias is ",
                bias.scalar_type(), " on ", bias.device(), ", input ", input.scalar_type(), " on ", input.device());
  }
  if (grad == 1) {
    TORCH_CHECK(refer.sizes() == input.sizes(), kName, ": refer is ", refer.sizes(), "; grad 1 needs the output of ",
                "the forward pass, of shape ", input.sizes());
    TORCH_CHECK(refer.scalar_type() == input.scalar_type() && refer.device() == input.device(), kName, ": refer is ",
                refer.scalar_type(), " on ", refer.device(), ", input ", input.scalar_type(), " on ", input.device());
  }
}

at::Tensor fused_bias_act(const at::Tensor& input, const at::Tensor& bias, const at::Tensor& refer, int64_t act,
                          int64_t grad, double alpha, double scale) {
  const Scalar type = scalar_of(input, kName);
  check(input, bias, refer, act, grad);
  const at::Tensor x = input.contiguous(), b = bias.contiguous();
  const at::Tensor at = grad == 1 ? refer.contiguous() : refer;
  at::Tensor out = at::empty_like(x);
  if (x.numel() == 0) return out;
  const int64_t channels = b.numel() > 0 ? x.size(1) : 1;
  const int64_t inner = b.numel() > 0 ? x.numel() / (x.size(0) * channels) : x.numel();
  const BiasAct work{x.const_data_ptr(),
                     b.numel() > 0 ? b.const_data_ptr() : nullptr,
                     grad == 1 ? at.const_data_ptr() : nullptr,
                     out.mutable_data_ptr(),
                     x.numel(),
                     channels,
                     inner,
                     static_cast<int>(act),
                     static_cast<int>(grad),
                     alpha,
                     scale};
#ifdef WITH_CUDA
  if (x.is_cuda()) {
    const c10::cuda::CUDAGuard guard(x.device());
    C10_CUDA_CHECK(static_cast<cudaError_t>(bias_act_cuda(work, type, c10::cuda::getCurrentCUDAStream().stream())));
    return out;
  }
#endif
  static_cast<void>(type);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), kName,
                                  [&] { bias_act_cpu<scalar_t>(work); });
  return out;
}

}  // namespace
}  // namespace image_ops

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "scale * f(input + bias) and its derivatives";
  m.def("fused_bias_act", &image_ops::fused_bias_act, pybind11::arg("input"), pybind11::arg("bias"),
        pybind11::arg("refer"), pybind11::arg("act"), pybind11::arg("grad"), pybind11::arg("alpha"),
        pybind11::arg("scale"), pybind11::call_guard<pybind11::gil_scoped_release>());
}
