// The one file that sees torch, and of it the stable headers alone: schemas, checks, and calls into librowstats.a.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <vector>

#include "rowstats.h"

namespace {

using torch::stable::Tensor;

Tensor checked(const Tensor& x) {
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "rowstats: x must be float32");
  STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) > 0, "rowstats: x must have rows of one value or more");
  return torch::stable::contiguous(x);
}

int64_t columns_of(const Tensor& x) { return x.size(x.dim() - 1); }

// The shape of x with another last dimension, or without it for 0.
Tensor result_for(const Tensor& x, int64_t last) {
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end() - 1);
  if (last > 0) sizes.push_back(last);
  return torch::stable::new_empty(x, sizes);
}

template <void (*kernel)(const float*, int64_t, int64_t, float*), int64_t kLast>
Tensor on_cpu(const Tensor& given) {
  const Tensor x = checked(given);
  Tensor out = result_for(x, kLast);
  const int64_t columns = columns_of(x);
  constexpr int64_t kEach = kLast > 0 ? kLast : 1;
  const float* rows = static_cast<const float*>(x.data_ptr());
  float* results = static_cast<float*>(out.data_ptr());
  torch::stable::parallel_for(0, x.numel() / columns, 1, [&](int64_t begin, int64_t end) {
    kernel(rows + begin * columns, end - begin, columns, results + begin * kEach);
  });
  return out;
}

#ifdef WITH_CUDA
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

Tensor moments_on_cuda(const Tensor& given) {
  const Tensor x = checked(given);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  Tensor out = result_for(x, 2);
  if (x.numel() == 0) return out;
  void* stream = nullptr;
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream) == AOTI_TORCH_SUCCESS,
                  "rowstats: torch has no CUDA stream");
  const int error = rowstats::moments_cuda(static_cast<const float*>(x.data_ptr()), x.numel() / columns_of(x),
                                           columns_of(x), static_cast<float*>(out.data_ptr()), stream);
  STD_TORCH_CHECK(error == 0, "rowstats: the launch failed with CUDA error ", error);
  return out;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rowstats, CPU, m) {
  m.impl("moments", TORCH_BOX(&(on_cpu<rowstats::moments, 2>)));
  m.impl("extremes", TORCH_BOX(&(on_cpu<rowstats::extremes, 2>)));
  m.impl("median", TORCH_BOX(&(on_cpu<rowstats::median, 0>)));
}

#ifdef WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(rowstats, CUDA, m) { m.impl("moments", TORCH_BOX(&moments_on_cuda)); }
#endif
