// The gradients of LayerNorm: checks, allocation, and the choice of a kernel. They are a family of their own, so that
// inference neither compiles nor loads them.
#include "../common/cpu_level.h"
#include "../common/launch.h"
#include "../common/walk.h"
#include "args.h"
#include "entries.h"
#include "rows.h"

namespace precast::layer_norm {
namespace {

// ---- which kernel serves which row ----
//
// A worker walks over rows and keeps its shares of the two parameter gradients in registers: sixteen numbers for each
// vector of a row. Two vectors of 16 bytes per thread take 96 registers and serve rows of up to 20 KB. Four take 128
// and serve rows of up to 32 KB. The `any` kernel handles the rest one element at a time and keeps its shares in
// memory.

PRECAST_ENTRIES(LAYER_NORM_BACKWARD_KERNELS)

// 210.2 instead of 201.2 us at 16384 x 8192: there is more to compute, and no other worker loads rows meanwhile.
constexpr bool kPairAlone = false;

KernelFamily kernels = {"layer_norm_backward", kEntries, entry::kCount};

constexpr WalkKernels kWalks = {
    PRECAST_BY_DTYPE(layer_norm_backward, _v2),      PRECAST_BY_DTYPE(layer_norm_backward, _v2_pair),
    PRECAST_BY_DTYPE(layer_norm_backward, _v4),      PRECAST_BY_DTYPE(layer_norm_backward, _v1),
    PRECAST_BY_DTYPE(layer_norm_backward, _wide),    PRECAST_BY_DTYPE(layer_norm_backward, _any),
    PRECAST_BY_DTYPE(layer_norm_backward, _shifted),
};

// ---- the two devices ----

// The destinations of the gradients of weight and bias. Null: not wanted.
struct Parameters {
  void* weight;
  void* bias;
  int64_t wanted() const { return (weight != nullptr) + (bias != nullptr); }
};

// Partial sums over rows: `lines` lines for each gradient.
Tensor make_parts(int64_t gradients, int64_t lines, const Norm& norm, int32_t dtype, const Tensor& like) {
  const int64_t sizes[] = {gradients, lines, norm.hidden};
  return empty(sizes, 3, dtype, like);
}

void sum_columns_cuda(const Norm& norm, const Tensor& parts, int64_t lines, const Parameters& results) {
  ColumnArgs columns;
  columns.parts = static_cast<const float*>(parts.data());
  columns.result = static_cast<char*>(results.weight != nullptr ? results.weight : results.bias);
  columns.second = static_cast<char*>(results.bias);
  columns.hidden = norm.hidden;
  columns.lines = static_cast<unsigned>(lines);
  columns.dtype = static_cast<int>(norm.columns_dtype());
  void* arguments[] = {&columns};
  launch(kernels, norm.device, entry::layer_norm_backward_columns, columns_shape(norm, lines, results.wanted()),
         arguments);
}

void backward_cuda(const Norm& norm, BackwardRows& work, const Parameters& results, const Tensor& x) {
  const int64_t bytes = norm.element_bytes(), row_bytes = norm.hidden * bytes;
  BackwardArgs args;
  args.grad_stride = work.grad_stride * bytes;
  args.x_stride = work.x_stride * bytes;
  args.grad_x_stride = row_bytes;
  const uint64_t misaligned = misalignment(work.grad, args.grad_stride) | misalignment(work.x, args.x_stride) |
                              misalignment(work.weight, norm.hidden * norm.column_bytes()) |
                              misalignment(work.grad_x, row_bytes);
  const Placed x_rows = {work.x, args.x_stride}, grad_x = {work.grad_x, row_bytes};
  const bool alike = lies_alike(x_rows, grad_x) && lies_alike({work.grad, args.grad_stride}, grad_x);
  const WalkPlan walk = choose_walk(kernels, norm, misaligned == 0 ? row_bytes / 16 : 0, kPairAlone,
                                    alike && misalignment(work.x, 0) == 0 ? shifted_vectors(row_bytes, bytes) : 0);
  const int entry = walk_entry(kWalks, norm, walk);
  const WalkGrid grid = walk_grid(kernels, entry, norm, walk, results.wanted());
  const Tensor parts = make_parts(results.wanted(), grid.lines, norm, float32_code(), x);

  if (norm.rows > 0) {
    float* lines = static_cast<float*>(parts.mutable_data());
    args.grad = static_cast<const char*>(work.grad);
    args.x = static_cast<const char*>(work.x);
    args.weight = static_cast<const char*>(work.weight);
    args.grad_x = static_cast<char*>(work.grad_x);
    args.weight_parts = results.weight != nullptr ? lines : nullptr;
    args.bias_parts =
        results.bias == nullptr ? nullptr : (results.weight != nullptr ? lines + grid.lines * norm.hidden : lines);
    args.hidden = norm.hidden;
    args.rows = norm.rows;
    args.vectors = walk.vectors;
    args.workers = static_cast<unsigned>(grid.workers);
    args.stages = walk.stages;
    args.slice = walk.slice;
    args.inverse_hidden = static_cast<float>(1.0 / static_cast<double>(norm.hidden));
    args.eps = work.eps;
    args.wide = norm.wide_columns;
    void* arguments[] = {&args};
    launch(kernels, norm.device, entry, walk_shape(walk, grid.blocks), arguments);
  }
  if (results.wanted() > 0) sum_columns_cuda(norm, parts, grid.lines, results);
}

constexpr int64_t kBackwardPs = 350;  // an element, for parallel_rows

void backward_cpu(const Norm& norm, BackwardRows& work, const Parameters& results, const Tensor& x) {
  const int64_t chunks = cut_into_chunks(norm, &work.chunk_rows);
  const Tensor parts = make_parts(chunks, 2, norm, float64_code(), x);
  work.parts = static_cast<double*>(parts.mutable_data());

  const BackwardFunction backward = PRECAST_AT_CPU_LEVEL(layer_norm, backward);
  parallel_rows(chunks, norm.hidden * work.chunk_rows * kBackwardPs,
                [&](int64_t begin, int64_t end) { backward(work, begin, end); });

  const ColumnsFunction reduce = PRECAST_AT_CPU_LEVEL(layer_norm, reduce);
  for_columns(norm, chunks, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < 2; ++i) {
      void* result = i == 0 ? results.weight : results.bias;
      if (result == nullptr) continue;
      reduce(work.parts + i * norm.hidden, chunks, 2 * norm.hidden, result, static_cast<int>(norm.columns_dtype()),
             begin, end);
    }
  });
}

// ---- the op, the same for both devices ----

using Backward = void (*)(const Norm&, BackwardRows&, const Parameters&, const Tensor&);

// A gradient that is not wanted has no elements.
Tensor parameter_gradient(bool wanted, const Norm& norm, const Tensor& x) {
  const int64_t sizes[] = {wanted ? norm.hidden : 0};
  return empty(sizes, 1, norm.columns_code(), x);
}

template <Backward backward>
TensorTriple norm_backward_op(const Tensor& grad, const Tensor& x, const Tensor* weight, double eps, bool weight_grad,
                              bool bias_grad) {
  const Norm norm = check_norm("layer_norm_backward", x, weight, nullptr, &grad, eps);
  TensorTriple result = {empty_contiguous_like(x), parameter_gradient(weight_grad, norm, x),
                         parameter_gradient(bias_grad, norm, x)};
  if (norm.hidden == 0) return result;
  const ReadRows grad_rows(grad), x_rows(x), weight_row(weight);
  BackwardRows work = {};
  work.grad = grad_rows.data();
  work.grad_stride = grad_rows.stride();
  work.x = x_rows.data();
  work.x_stride = x_rows.stride();
  work.weight = weight_row.data();
  work.grad_x = result.first.mutable_data();
  work.rows = norm.rows;
  work.hidden = norm.hidden;
  work.eps = static_cast<float>(eps);
  work.dtype = static_cast<int>(norm.dtype);
  work.wide_columns = norm.wide_columns;
  const Parameters parameters = {weight_grad ? result.second.mutable_data() : nullptr,
                                 bias_grad ? result.third.mutable_data() : nullptr};
  backward(norm, work, parameters, x);
  return result;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("layer_norm_backward", "CPU", norm_backward_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("layer_norm_backward", "CUDA", norm_backward_op<backward_cuda>),
};
PRECAST_FAMILY(layer_norm_backward, kImplementations, &kernels);

}  // namespace
}  // namespace precast::layer_norm
