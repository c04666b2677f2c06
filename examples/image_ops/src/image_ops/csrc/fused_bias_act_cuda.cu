#include "by_type.cuh"
#include "fused_bias_act.h"

namespace image_ops {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;

// Index: 32 bits where they are enough, as a division of 64 bits for each element costs more than the element.
template <typename T, typename Acc, typename Index>
__global__ void __launch_bounds__(kThreads) bias_act_kernel(BiasAct work) {
  const T* input = static_cast<const T*>(work.input);
  const T* bias = static_cast<const T*>(work.bias);
  const T* refer = static_cast<const T*>(work.refer);
  T* out = static_cast<T*>(work.out);
  const Acc alpha = static_cast<Acc>(work.alpha), scale = static_cast<Acc>(work.scale);
  const Index elements = static_cast<Index>(work.elements), inner = static_cast<Index>(work.inner);
  const Index channels = static_cast<Index>(work.channels);
  const Index step = static_cast<Index>(gridDim.x) * kThreads;
  for (Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += step) {
    Acc u = widen(input[i]);
    if (bias) u += widen(bias[i / inner % channels]);
    const Acc at = refer ? Acc(widen(refer[i])) : u;
    out[i] = narrow<T>(bias_act_element(u, at, work.act, work.grad, alpha, scale));
  }
}

template <typename T, typename Acc>
void launch(Types<T, Acc>, const BiasAct& work, cudaStream_t stream) {
  const int64_t wanted = (work.elements + kThreads - 1) / kThreads;
  const unsigned blocks = static_cast<unsigned>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
  // Half of the range, so that the last step cannot pass its end.
  if (work.elements < (int64_t{1} << 31)) {
    bias_act_kernel<T, Acc, uint32_t><<<blocks, kThreads, 0, stream>>>(work);
  } else {
    bias_act_kernel<T, Acc, int64_t><<<blocks, kThreads, 0, stream>>>(work);
  }
}

}  // namespace

int bias_act_cuda(const BiasAct& work, Scalar type, void* stream) {
  return launch_by_type(type, [&](auto types) { launch(types, work, static_cast<cudaStream_t>(stream)); });
}

}  // namespace image_ops
