// The gradients of RMSNorm: checks, allocation, and the choice of a kernel. They are a family of their own, so that
// inference neither compiles nor loads them.
#include "../cpu/cpu_level.h"
#include "../gpu/launch.h"
#include "args.h"
#include "backward.h"
#include "entries.h"

namespace precast::rms_norm {
namespace {

// ---- which kernel serves which row ----
//
// A worker walks over rows and keeps its share of grad_weight in registers. For rows of up to 20 KB each thread has two
// vectors of 16 bytes and sixteen sums; for rows of up to 32 KB, four vectors and thirty-two sums. The `any` kernel
// handles the rest one element at a time and keeps its share in memory. On an H200, at rows of 8 and 16 KB, two vectors
// per thread reached 0.85 and 0.90 of the copy rate. One vector was slower (0.80 and 0.71), and so were four (0.72 and
// 0.68).

PRECAST_ENTRIES(RMS_NORM_BACKWARD_KERNELS)

// 202.2 instead of 204.6 us at 16384 x 8192.
constexpr bool kPairAlone = true;

KernelFamily kernels = {"rms_norm_backward", kEntries, entry::kCount};

constexpr WalkKernels kWalks = {
    PRECAST_BY_DTYPE(rms_norm_backward, _v2),      PRECAST_BY_DTYPE(rms_norm_backward, _v2_pair),
    PRECAST_BY_DTYPE(rms_norm_backward, _v4),      PRECAST_BY_DTYPE(rms_norm_backward, _v1),
    PRECAST_BY_DTYPE(rms_norm_backward, _wide),    PRECAST_BY_DTYPE(rms_norm_backward, _any),
    PRECAST_BY_DTYPE(rms_norm_backward, _shifted),
};

// ---- the two devices ----

void backward_cuda(const Norm& norm, BackwardRows& work, void* grad_weight, const Tensor& x) {
  BackwardArgs args;
  const uint64_t misaligned = norm::set_strides(norm, work, args);
  args.grad_sum_stride = work.grad_sum_stride * norm.element_bytes();
  const bool aligned = (misaligned | misalignment(work.grad_sum, args.grad_sum_stride)) == 0;
  const int64_t row_bytes = args.grad_x_stride;
  const bool alike =
      norm::lie_alike(work, args) &&
      (work.grad_sum == nullptr || lies_alike({work.grad_sum, args.grad_sum_stride}, {work.grad_x, row_bytes}));
  const WalkPlan walk = choose_walk(kernels, norm, aligned ? row_bytes / 16 : 0, kPairAlone,
                                    alike ? shifted_vectors(row_bytes, norm.element_bytes()) : 0);
  const int entry = walk_entry(kWalks, norm, walk);
  const WalkGrid grid = walk_grid(kernels, entry, norm, walk, 1);
  const Tensor parts = norm::make_parts(1, grid.lines, norm, float32_code(), x);
  args.grad_sum = static_cast<const char*>(work.grad_sum);
  args.parts = static_cast<float*>(parts.mutable_data());
  args.casting = work.casting;
  norm::launch_walk(kernels, entry, norm, work, walk, grid, args);

  ColumnArgs columns;
  columns.grad_weight = static_cast<char*>(grad_weight);
  norm::launch_columns(kernels, entry::rms_norm_backward_columns, norm, parts, grid.lines, 1, columns);
}

void backward_cpu(const Norm& norm, BackwardRows& work, void* grad_weight, const Tensor& x) {
  const norm::OnCpu level = {PRECAST_AT_CPU_LEVEL(rms_norm, backward), PRECAST_AT_CPU_LEVEL(rms_norm, reduce), 250};
  norm::run_backward<1>(level, norm, work, {grad_weight}, x);
}

// ---- the ops, the same for both devices ----

using Backward = void (*)(const Norm&, BackwardRows&, void*, const Tensor&);

template <Backward backward>
TensorPair gradients(const Norm& norm, const Tensor& grad, const Tensor* grad_sum, const Tensor& x,
                     const Tensor& weight, double eps, int64_t casting) {
  TensorPair result(empty_contiguous_like(x), empty_contiguous_like(weight));
  if (norm.hidden == 0) return result;
  const ReadRows grad_rows(grad), sum_rows(grad_sum), x_rows(x), weight_row(weight);
  BackwardRows work = norm::describe(norm, grad_rows, x_rows, weight_row, result.first, eps);
  work.grad_sum = sum_rows.data();
  work.grad_sum_stride = sum_rows.stride();
  work.casting = static_cast<int>(casting);
  backward(norm, work, result.second.mutable_data(), x);
  return result;
}

template <Backward backward>
TensorPair norm_backward_op(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps, int64_t casting) {
  const Named others[] = {{"grad", grad}};
  const Norm norm = check_norm("rms_norm_backward", x, weight, eps, casting, others, 1);
  return gradients<backward>(norm, grad, nullptr, x, weight, eps, casting);
}

// `x` is the saved sum. Its gradient is the gradient of both addends.
template <Backward backward>
TensorPair add_norm_backward_op(const Tensor& grad_y, const Tensor& grad_sum, const Tensor& x, const Tensor& weight,
                                double eps, int64_t casting) {
  const Named others[] = {{"grad_y", grad_y}, {"grad_sum", grad_sum}};
  const Norm norm = check_norm("fused_add_rms_norm_backward", x, weight, eps, casting, others, 2);
  return gradients<backward>(norm, grad_y, &grad_sum, x, weight, eps, casting);
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("rms_norm_backward", "CPU", norm_backward_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("fused_add_rms_norm_backward", "CPU", add_norm_backward_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("rms_norm_backward", "CUDA", norm_backward_op<backward_cuda>),
    PRECAST_IMPLEMENTATION("fused_add_rms_norm_backward", "CUDA", add_norm_backward_op<backward_cuda>),
};
PRECAST_FAMILY(rms_norm_backward, kImplementations, &kernels);

}  // namespace
}  // namespace precast::rms_norm
