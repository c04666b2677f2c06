// The forward op of LayerNorm: checks, allocation, and the choice of a kernel.
#include "../cpu/cpu_level.h"
#include "args.h"
#include "entries.h"
#include "forward.h"

namespace precast::layer_norm {
namespace {

// ---- which kernel serves which row ----
//
// H200, bf16, share of the copy rate. v4 has a fourth of the row's vectors as threads; rows of up to 2 KB use one warp
// each, with two or four rows per block:
//
//   row             v4        two vectors per thread, 40 registers
//   1024 (2 KB)     0.91
//   4096 (8 KB)     0.957     0.895
//   5120 (10 KB)    0.964
//   8192 (16 KB)    0.953
//
// v4 fits in 64 registers. A warp handles several rows of up to 512 bytes. Unaligned rows have a kernel of the same
// form. A cluster of blocks holds rows that one block cannot hold, on GPUs that have clusters. Other rows use the `any`
// kernel, which reads them three times, after the first time from the caches. It also serves float32 parameters with
// narrower rows.

PRECAST_ENTRIES(LAYER_NORM_KERNELS)

KernelFamily kernels = {"layer_norm", kEntries, entry::kCount};

constexpr ByDType kV4 = PRECAST_BY_DTYPE(layer_norm, _v4), kAny = PRECAST_BY_DTYPE(layer_norm, _any),
                  kShifted = PRECAST_BY_DTYPE(layer_norm, _shifted), kWide = PRECAST_BY_DTYPE(layer_norm, _wide);

constexpr uint32_t kWideParameters = kFirstOfFamily;

using norm::kFormOfThree;

constexpr RowRule kRules[] = {
    {kAligned | kWideParameters, 1024, kAny, Form::kAnyRow},
    {kUnaligned | kWideParameters, 0, kAny, Form::kAnyRow},
    {kAligned | kWideParameters | kClusters, 4 * 8 * 1024, kWide, Form::kCluster, 0, 0, kFormOfThree},
    {kAligned | kWideParameters, 0, kAny, Form::kAnyRow},
    {kAligned, 4 * 512, kV4, Form::kRegisters, 4},
    {kUnaligned, 4 * 512, kShifted, Form::kRegisters, 4, 64},
    {kAligned | kClusters, 4 * 8 * 1024, kWide, Form::kCluster, 0, 0, kFormOfThree},
    {0, 0, kAny, Form::kAnyRow},
};

// ---- the two devices ----

void forward_cuda(const Norm& norm, const ForwardRows& work) {
  const int64_t bytes = norm.element_bytes(), row_bytes = norm.hidden * bytes;
  const int64_t column_bytes = norm.hidden * norm.column_bytes();
  ForwardArgs args;
  args.x_stride = work.x_stride * bytes;
  args.y_stride = row_bytes;
  const uint64_t misaligned = misalignment(work.x, args.x_stride) | misalignment(work.y, row_bytes) |
                              misalignment(work.weight, column_bytes) | misalignment(work.bias, column_bytes);
  const bool alike = lies_alike({work.x, args.x_stride}, {work.y, row_bytes}) && misalignment(work.weight, 0) == 0 &&
                     misalignment(work.bias, 0) == 0;
  const RowKernel choice =
      choose_row(kRules, kernels,
                 {norm.wide_columns ? kWideParameters : 0u, norm.rows, norm.hidden, vectors_of(misaligned, row_bytes),
                  alike ? shifted_vectors(row_bytes, bytes) : 0, norm.device});
  args.bias = static_cast<const char*>(work.bias);
  args.prefetch = choice.kernel != kV4 ? 0 : rows_ahead(row_bytes);
  norm::launch_forward(kernels, norm, work, choice, args, [](int64_t) {});
}

void forward_cpu(const Norm& norm, const ForwardRows& work) {
  norm::run_forward(norm, work, PRECAST_AT_CPU_LEVEL(layer_norm, forward), 150);
}

// ---- the op, the same for both devices ----

using norm::Forward;

template <Forward forward>
Tensor norm_op(const Tensor& x, const Tensor* weight, const Tensor* bias, double eps) {
  const Norm norm = check_norm("layer_norm", x, weight, bias, nullptr, eps);
  Tensor y = empty_contiguous_like(x);
  if (norm.rows == 0) return y;
  const ReadRows x_rows(x), weight_row(weight), bias_row(bias);
  ForwardRows work = norm::describe(norm, eps);
  work.x = x_rows.data();
  work.x_stride = x_rows.stride();
  work.weight = weight_row.data();
  work.bias = bias_row.data();
  work.y = y.mutable_data();
  forward(norm, work);
  return y;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("layer_norm", "CPU", norm_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("layer_norm", "CUDA", norm_op<forward_cuda>),
};
PRECAST_FAMILY(layer_norm, kImplementations, &kernels);

}  // namespace
}  // namespace precast::layer_norm
