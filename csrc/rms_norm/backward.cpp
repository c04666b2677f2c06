// The gradients of RMSNorm: checks, allocation, and the choice of a kernel. They are a family of their own, so that
// inference neither compiles nor loads them.
#include "../common/cpu_level.h"
#include "../common/launch.h"
#include "../common/walk.h"
#include "args.h"
#include "entries.h"
#include "rows.h"

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
    PRECAST_BY_DTYPE(rms_norm_backward, _v2),   PRECAST_BY_DTYPE(rms_norm_backward, _v2_pair),
    PRECAST_BY_DTYPE(rms_norm_backward, _v4),   PRECAST_BY_DTYPE(rms_norm_backward, _v1),
    PRECAST_BY_DTYPE(rms_norm_backward, _wide), PRECAST_BY_DTYPE(rms_norm_backward, _any),
};

// ---- the two devices ----

// The partial sums of grad_weight.
Tensor make_parts(int64_t lines, const Norm& norm, int32_t dtype, const Tensor& like) {
  const int64_t sizes[] = {lines, norm.hidden};
  return empty(sizes, 2, dtype, like);
}

void backward_cuda(const Norm& norm, BackwardRows& work, void* grad_weight, const Tensor& x) {
  const int64_t bytes = norm.element_bytes(), row_bytes = norm.hidden * bytes;
  BackwardArgs args;
  args.grad_stride = work.grad_stride * bytes;
  args.grad_sum_stride = work.grad_sum_stride * bytes;
  args.x_stride = work.x_stride * bytes;
  args.grad_x_stride = row_bytes;
  const uint64_t misaligned = misalignment(work.grad, args.grad_stride) | misalignment(work.x, args.x_stride) |
                              misalignment(work.grad_sum, args.grad_sum_stride) | misalignment(work.grad_x, row_bytes) |
                              misalignment(work.weight, norm.hidden * norm.column_bytes());
  const WalkPlan walk = choose_walk(kernels, norm, misaligned == 0 ? row_bytes / 16 : 0, kPairAlone);
  const int entry = walk_entry(kWalks, norm, walk);
  const WalkGrid grid = walk_grid(kernels, entry, norm, walk, 1);
  const Tensor parts = make_parts(grid.lines, norm, float32_code(), x);

  if (norm.rows > 0) {
    args.grad = static_cast<const char*>(work.grad);
    args.grad_sum = static_cast<const char*>(work.grad_sum);
    args.x = static_cast<const char*>(work.x);
    args.weight = static_cast<const char*>(work.weight);
    args.grad_x = static_cast<char*>(work.grad_x);
    args.parts = static_cast<float*>(parts.mutable_data());
    args.hidden = norm.hidden;
    args.rows = norm.rows;
    args.vectors = walk.vectors;
    args.workers = static_cast<unsigned>(grid.workers);
    args.stages = walk.stages;
    args.slice = walk.slice;
    args.inverse_hidden = static_cast<float>(1.0 / static_cast<double>(norm.hidden));
    args.eps = work.eps;
    args.wide = norm.wide_columns;
    args.casting = work.casting;
    void* arguments[] = {&args};
    launch(kernels, norm.device, entry, walk_shape(walk, grid.blocks), arguments);
  }

  ColumnArgs columns;
  columns.parts = static_cast<const float*>(parts.data());
  columns.grad_weight = static_cast<char*>(grad_weight);
  columns.hidden = norm.hidden;
  columns.lines = static_cast<unsigned>(grid.lines);
  columns.dtype = static_cast<int>(norm.columns_dtype());
  void* arguments[] = {&columns};
  launch(kernels, norm.device, entry::rms_norm_backward_columns, columns_shape(norm, grid.lines, 1), arguments);
}

constexpr int64_t kBackwardPs = 250;  // an element, for parallel_rows

void backward_cpu(const Norm& norm, BackwardRows& work, void* grad_weight, const Tensor& x) {
  const int64_t chunks = cut_into_chunks(norm, &work.chunk_rows);
  const Tensor parts = make_parts(chunks, norm, float64_code(), x);
  work.weight_parts = static_cast<double*>(parts.mutable_data());

  const BackwardFunction backward = PRECAST_AT_CPU_LEVEL(rms_norm, backward);
  parallel_rows(chunks, norm.hidden * work.chunk_rows * kBackwardPs,
                [&](int64_t begin, int64_t end) { backward(work, begin, end); });

  const WeightFunction reduce = PRECAST_AT_CPU_LEVEL(rms_norm, reduce_weight);
  for_columns(norm, chunks, [&](int64_t begin, int64_t end) {
    reduce(work.weight_parts, chunks, norm.hidden, grad_weight, static_cast<int>(norm.columns_dtype()), begin, end);
  });
}

// ---- the ops, the same for both devices ----

using Backward = void (*)(const Norm&, BackwardRows&, void*, const Tensor&);

template <Backward backward>
TensorPair gradients(const Norm& norm, const Tensor& grad, const Tensor* grad_sum, const Tensor& x,
                     const Tensor& weight, double eps, int64_t casting) {
  TensorPair result(empty_contiguous_like(x), empty_contiguous_like(weight));
  if (norm.hidden == 0) return result;
  const ReadRows grad_rows(grad), sum_rows(grad_sum), x_rows(x), weight_row(weight);
  BackwardRows work = {};
  work.grad = grad_rows.data();
  work.grad_stride = grad_rows.stride();
  work.grad_sum = sum_rows.data();
  work.grad_sum_stride = sum_rows.stride();
  work.x = x_rows.data();
  work.x_stride = x_rows.stride();
  work.weight = weight_row.data();
  work.grad_x = result.first.mutable_data();
  work.rows = norm.rows;
  work.hidden = norm.hidden;
  work.eps = static_cast<float>(eps);
  work.dtype = static_cast<int>(norm.dtype);
  work.wide_weight = norm.wide_columns;
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
