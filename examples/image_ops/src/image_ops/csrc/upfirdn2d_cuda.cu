#include "by_type.cuh"
#include "upfirdn2d.h"

namespace image_ops {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxPlanes = 65535;  // what a grid has in its second dimension

template <typename T, typename Acc>
__global__ void __launch_bounds__(kThreads) upfirdn2d_kernel(UpFirDn work) {
  extern __shared__ double shared[];  // of doubles, so that it is aligned for both types
  Acc* kernel = reinterpret_cast<Acc*>(shared);
  for (int i = threadIdx.x; i < work.y.taps * work.x.taps; i += kThreads) {
    kernel[i] = static_cast<const Acc*>(work.kernel)[i];
  }
  __syncthreads();
  const int64_t pixels = int64_t{work.y.out} * work.x.out, samples = int64_t{work.y.in} * work.x.in;
  const int64_t pixel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pixel >= pixels) return;
  const int y = static_cast<int>(pixel / work.x.out), x = static_cast<int>(pixel - int64_t{y} * work.x.out);
  for (int64_t plane = blockIdx.y; plane < work.planes; plane += gridDim.y) {
    const T* input = static_cast<const T*>(work.input) + plane * samples;
    const Acc sum = upfirdn2d_element(work, kernel, y, x, [input](int64_t at) { return Acc(widen(input[at])); });
    static_cast<T*>(work.out)[plane * pixels + pixel] = narrow<T>(sum);
  }
}

template <typename T, typename Acc>
void launch(Types<T, Acc>, const UpFirDn& work, cudaStream_t stream) {
  const int64_t pixels = int64_t{work.y.out} * work.x.out;
  const dim3 grid(static_cast<unsigned>((pixels + kThreads - 1) / kThreads),
                  static_cast<unsigned>(work.planes < kMaxPlanes ? work.planes : kMaxPlanes));
  const size_t shared_bytes = sizeof(Acc) * work.y.taps * work.x.taps;
  upfirdn2d_kernel<T, Acc><<<grid, kThreads, shared_bytes, stream>>>(work);
}

}  // namespace

int upfirdn2d_cuda(const UpFirDn& work, Scalar type, void* stream) {
  return launch_by_type(type, [&](auto types) { launch(types, work, static_cast<cudaStream_t>(stream)); });
}

}  // namespace image_ops
