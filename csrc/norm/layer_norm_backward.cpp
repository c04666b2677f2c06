// The gradients of LayerNorm: checks, allocation, and the choice of a kernel. They are a family of their own, so that
// inference neither compiles nor loads them.
#include "../cpu/cpu_level.h"
#include "../gpu/launch.h"
#include "args.h"
#include "backward.h"
#include "entries.h"

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

void backward_cuda(const Norm& norm, BackwardRows& work, const Parameters& results, const Tensor& x) {
  BackwardArgs args;
  const uint64_t misaligned = norm::set_strides(norm, work, args);
  const int64_t row_bytes = args.grad_x_stride;
  const WalkPlan walk = choose_walk(kernels, norm, misaligned == 0 ? row_bytes / 16 : 0, kPairAlone,
                                    norm::lie_alike(work, args) ? shifted_vectors(row_bytes, norm.element_bytes()) : 0);
  const int entry = walk_entry(kWalks, norm, walk);
  const WalkGrid grid = walk_grid(kernels, entry, norm, walk, results.wanted());
  const Tensor parts = norm::make_parts(results.wanted(), grid.lines, norm, float32_code(), x);
  float* lines = static_cast<float*>(parts.mutable_data());
  args.weight_parts = results.weight != nullptr ? lines : nullptr;
  args.bias_parts =
      results.bias == nullptr ? nullptr : (results.weight != nullptr ? lines + grid.lines * norm.hidden : lines);
  norm::launch_walk(kernels, entry, norm, work, walk, grid, args);
  if (results.wanted() == 0) return;

  ColumnArgs columns;
  columns.result = static_cast<char*>(results.weight != nullptr ? results.weight : results.bias);
  columns.second = static_cast<char*>(results.bias);
  norm::launch_columns(kernels, entry::layer_norm_backward_columns, norm, parts, grid.lines, results.wanted(), columns);
}

void backward_cpu(const Norm& norm, BackwardRows& work, const Parameters& results, const Tensor& x) {
  const norm::OnCpu level = {PRECAST_AT_CPU_LEVEL(layer_norm, backward), PRECAST_AT_CPU_LEVEL(layer_norm, reduce), 350};
  norm::run_backward<2>(level, norm, work, {results.weight, results.bias}, x);
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
  BackwardRows work = norm::describe(norm, grad_rows, x_rows, weight_row, result.first, eps);
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
