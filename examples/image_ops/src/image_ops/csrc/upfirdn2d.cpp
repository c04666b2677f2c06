#include "upfirdn2d.h"

#include <ATen/ops/empty.h>

#include <limits>
#include <vector>

#include "torch_side.h"

namespace image_ops {
namespace {

constexpr const char* kName = "upfirdn2d";
constexpr int64_t kGrain = 1 << 15;  // products for one thread

template <typename T>
void upfirdn2d_cpu(const UpFirDn& work) {
  using Acc = at::opmath_type<T>;
  const Acc* kernel = static_cast<const Acc*>(work.kernel);
  const int64_t samples = int64_t{work.y.in} * work.x.in;
  // By rows of the output, and as many for a thread as are worth one.
  const int64_t for_a_row = int64_t{work.x.out} * work.y.taps * work.x.taps;
  at::parallel_for(0, work.planes * work.y.out, 1 + kGrain / for_a_row, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* input = static_cast<const T*>(work.input) + row / work.y.out * samples;
      T* out = static_cast<T*>(work.out) + row * work.x.out;
      const int y = static_cast<int>(row % work.y.out);
      for (int x = 0; x < work.x.out; ++x) {
        const auto read = [input](int64_t at) { return static_cast<Acc>(input[at]); };
        out[x] = static_cast<T>(upfirdn2d_element(work, kernel, y, x, read));
      }
    }
  });
}

Axis axis_of(int64_t in, int64_t taps, int64_t up, int64_t down, int64_t pad0, int64_t pad1) {
  TORCH_CHECK_VALUE(up >= 1 && down >= 1, kName, ": up is ", up, " and down is ", down, "; both are 1 or more");
  constexpr int64_t kMost = std::numeric_limits<int>::max() / 4;
  for (const int64_t one : {in, taps, up, down, pad0, -pad0, pad1, -pad1}) {
    TORCH_CHECK_VALUE(one <= kMost, kName, ": ", one, " is beyond ", kMost);
  }
  const int64_t padded = in * up + pad0 + pad1;
  TORCH_CHECK_VALUE(padded <= kMost && padded >= taps, kName, ": a length of ", in, " becomes ", padded,
                    " samples when upsampled by ", up, " and padded by ", pad0, " and ", pad1, "; a kernel of ", taps,
                    " taps needs from ", taps, " to ", kMost);
  const int64_t out = (padded - taps) / down + 1;
  return {static_cast<int>(in), static_cast<int>(out),  static_cast<int>(taps),
          static_cast<int>(up), static_cast<int>(down), static_cast<int>(pad0)};
}

at::Tensor upfirdn2d(const at::Tensor& input, const at::Tensor& kernel, int64_t up_x, int64_t up_y, int64_t down_x,
                     int64_t down_y, int64_t pad_x0, int64_t pad_x1, int64_t pad_y0, int64_t pad_y1) {
  const Scalar type = scalar_of(input, kName);
  check_device(input, kName);
  TORCH_CHECK(input.dim() >= 2, kName, ": input is ", input.sizes(), "; the last two dimensions are the image");
  TORCH_CHECK(kernel.dim() == 2 && kernel.numel() > 0 && kernel.numel() <= kMostTaps, kName, ": kernel is ",
              kernel.sizes(), "; it has two dimensions and from 1 to ", kMostTaps, " taps");
  TORCH_CHECK(kernel.device() == input.device(), kName, ": kernel is on ", kernel.device(), ", input on ",
              input.device());
  const Axis y = axis_of(input.size(-2), kernel.size(0), up_y, down_y, pad_y0, pad_y1);
  const Axis x = axis_of(input.size(-1), kernel.size(1), up_x, down_x, pad_x0, pad_x1);
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[sizes.size() - 2] = y.out, sizes[sizes.size() - 1] = x.out;
  at::Tensor out = at::empty(sizes, input.options());
  if (out.numel() == 0) return out;
  const at::Tensor from = input.contiguous();
  const at::Tensor taps = kernel.to(type == Scalar::kFloat64 ? at::kDouble : at::kFloat).contiguous();
  const int64_t planes = out.numel() / (int64_t{y.out} * x.out);
  const UpFirDn work{from.const_data_ptr(), taps.const_data_ptr(), out.mutable_data_ptr(), planes, y, x};
#ifdef WITH_CUDA
  if (from.is_cuda()) {
    const c10::cuda::CUDAGuard guard(from.device());
    C10_CUDA_CHECK(static_cast<cudaError_t>(upfirdn2d_cuda(work, type, c10::cuda::getCurrentCUDAStream().stream())));
    return out;
  }
#endif
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, from.scalar_type(), kName,
                                  [&] { upfirdn2d_cpu<scalar_t>(work); });
  return out;
}

}  // namespace
}  // namespace image_ops

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Upsample, filter and downsample images";
  m.def("upfirdn2d", &image_ops::upfirdn2d, pybind11::arg("input"), pybind11::arg("kernel"), pybind11::arg("up_x"),
        pybind11::arg("up_y"), pybind11::arg("down_x"), pybind11::arg("down_y"), pybind11::arg("pad_x0"),
        pybind11::arg("pad_x1"), pybind11::arg("pad_y0"), pybind11::arg("pad_y1"),
        pybind11::call_guard<pybind11::gil_scoped_release>());
}
