// The forward ops of RMSNorm: checks, allocation, and the choice of a kernel.
#include "../cpu/cpu_level.h"
#include "args.h"
#include "entries.h"
#include "forward.h"

namespace precast::rms_norm {
namespace {

// ---- which kernel serves which row ----
//
// H200, bf16, share of the copy rate for these shapes (rms_norm / add_rms_norm):
//
//   row                  v4                      add v1
//   1024 (2 KB)          T 32, two rows  0.925   T 128   0.975
//   4096 (8 KB)          T 128           0.966   T 512   0.982
//   8192 (16 KB)         T 256           0.965   T 1024  0.985
//
// A plain row needs four vectors of 16 bytes per thread. With two streams one vector keeps as many loads in flight and
// needs the fewest registers. A warp handles several rows of up to 512 bytes. Unaligned rows have a kernel of the same
// form. A cluster of blocks holds rows that one block cannot hold, on GPUs that have clusters. Other rows use the `any`
// kernel, which reads them twice, the second time from the caches. It also serves a float32 weight with narrower rows.

PRECAST_ENTRIES(RMS_NORM_KERNELS)

KernelFamily kernels = {"rms_norm", kEntries, entry::kCount};

constexpr ByDType kV4 = PRECAST_BY_DTYPE(rms_norm, _v4), kAny = PRECAST_BY_DTYPE(rms_norm, _any),
                  kAddV1 = PRECAST_BY_DTYPE(add_rms_norm, _v1), kShifted = PRECAST_BY_DTYPE(rms_norm, _shifted),
                  kWide = PRECAST_BY_DTYPE(rms_norm, _wide);

constexpr uint32_t kAdds = kFirstOfFamily;
constexpr uint32_t kNoAdd = 2 * kFirstOfFamily;
constexpr uint32_t kWideWeight = 4 * kFirstOfFamily;

using norm::kFormOfThree;
using norm::kFormOfTwo;

constexpr RowRule kRules[] = {
    {kAligned | kWideWeight, 1024, kAny, Form::kAnyRow},
    {kUnaligned | kWideWeight, 0, kAny, Form::kAnyRow},
    {kAligned | kWideWeight | kClusters, 4 * 8 * 1024, kWide, Form::kCluster, 0, 0, kFormOfThree},
    {kAligned | kWideWeight, 0, kAny, Form::kAnyRow},
    {kAligned | kAdds, 32, kAddV1, Form::kRegisters, 1},
    {kAligned | kAdds, 1024, kAddV1, Form::kSpread, 1},
    {kAligned | kNoAdd, 4 * 640, kV4, Form::kRegisters, 4},
    {kUnaligned, 4 * 512, kShifted, Form::kRegisters, 4, 64},
    {kAligned | kClusters | kAdds | kFewRows, 4 * 8 * 1024, kWide, Form::kCluster, 0, 0, kFormOfThree},
    {kAligned | kAdds, 2048, kAny, Form::kAnyRow},
    {kAligned | kClusters | kAdds, 4 * 8 * 1024, kWide, Form::kCluster, 0, 0, kFormOfThree},
    {kAligned | kClusters, 4 * 8 * 1024, kWide, Form::kCluster, 0, 0, kFormOfTwo},
    {0, 0, kAny, Form::kAnyRow},
};

// ---- the two devices ----

void forward_cuda(const Norm& norm, const ForwardRows& work) {
  const int64_t bytes = norm.element_bytes(), row_bytes = norm.hidden * bytes;
  const bool add = work.residual != nullptr;
  ForwardArgs args;
  args.x_stride = work.x_stride * bytes;
  args.residual_stride = work.residual_stride * bytes;
  args.y_stride = work.y_stride * bytes;
  args.sum_stride = work.sum_stride * bytes;
  const uint64_t misaligned = misalignment(work.x, args.x_stride) | misalignment(work.y, args.y_stride) |
                              misalignment(work.weight, norm.hidden * norm.column_bytes()) |
                              misalignment(work.residual, args.residual_stride) |
                              misalignment(work.sum, args.sum_stride);
  const Placed y = {work.y, args.y_stride};
  const bool alike = lies_alike({work.x, args.x_stride}, y) && work.x != work.y && misalignment(work.weight, 0) == 0 &&
                     (!add || (lies_alike({work.residual, args.residual_stride}, y) &&
                               lies_alike({work.sum, args.sum_stride}, y) && work.residual != work.sum));
  const uint32_t has = (add ? kAdds : kNoAdd) | (norm.wide_columns ? kWideWeight : 0);
  const RowKernel choice = choose_row(kRules, kernels,
                                      {has, norm.rows, norm.hidden, vectors_of(misaligned, row_bytes),
                                       alike ? shifted_vectors(row_bytes, bytes) : 0, norm.device});
  args.prefetch = choice.kernel != kV4 && choice.kernel != kAddV1 ? 0 : rows_ahead(row_bytes * (add ? 2 : 1));
  args.casting = work.casting;
  norm::launch_forward(kernels, norm, work, choice, args, [&](int64_t begin) {
    args.residual = add ? static_cast<const char*>(work.residual) + begin * args.residual_stride : nullptr;
    args.sum = add ? static_cast<char*>(work.sum) + begin * args.sum_stride : nullptr;
  });
}

void forward_cpu(const Norm& norm, const ForwardRows& work) {
  norm::run_forward(norm, work, PRECAST_AT_CPU_LEVEL(rms_norm, forward), 120);
}

// ---- the ops, the same for both devices ----

using norm::Forward;

ForwardRows describe(const Norm& norm, const ReadRows& weight, double eps, int64_t casting) {
  ForwardRows work = norm::describe(norm, eps);
  work.weight = weight.data();
  work.casting = static_cast<int>(casting);
  return work;
}

template <Forward forward>
Tensor norm_op(const Tensor& x, const Tensor& weight, double eps, int64_t casting) {
  const Norm norm = check_norm("rms_norm", x, weight, eps, casting, nullptr, 0);
  Tensor y = empty_contiguous_like(x);
  if (norm.rows == 0) return y;
  const ReadRows x_rows(x), weight_row(weight);
  ForwardRows work = describe(norm, weight_row, eps, casting);
  work.x = x_rows.data();
  work.x_stride = x_rows.stride();
  work.y = y.mutable_data();
  forward(norm, work);
  return y;
}

template <Forward forward>
TensorPair add_norm_op(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, int64_t casting) {
  const Named others[] = {{"residual", residual}};
  const Norm norm = check_norm("fused_add_rms_norm", x, weight, eps, casting, others, 1);
  TensorPair result(empty_contiguous_like(x), empty_contiguous_like(x));
  if (norm.rows == 0) return result;
  const ReadRows x_rows(x), residual_rows(residual), weight_row(weight);
  ForwardRows work = describe(norm, weight_row, eps, casting);
  work.x = x_rows.data();
  work.x_stride = x_rows.stride();
  work.residual = residual_rows.data();
  work.residual_stride = residual_rows.stride();
  work.y = result.first.mutable_data();
  work.sum = result.second.mutable_data();
  forward(norm, work);
  return result;
}

// ---- in place ----

// Rows with the same stride may be interleaved without overlap, like the halves of one wide buffer.
bool overlap(const WrittenRows& a, const WrittenRows& b, const Norm& norm) {
  const int64_t bytes = norm.element_bytes(), row = norm.hidden * bytes;
  const int64_t a_extent = (norm.rows - 1) * a.stride * bytes + row,
                b_extent = (norm.rows - 1) * b.stride * bytes + row;
  const int64_t distance = a.data < b.data ? b.data - a.data : a.data - b.data;
  if (distance >= (a.data < b.data ? a_extent : b_extent)) return false;
  if (a.stride != b.stride || norm.rows == 1) return true;
  const int64_t offset = distance % (a.stride * bytes);
  return offset < row || offset > a.stride * bytes - row;
}

template <Forward forward>
void add_norm_in_place_op(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, int64_t casting) {
  const Named others[] = {{"residual", residual}};
  const Norm norm = check_norm("fused_add_rms_norm_", x, weight, eps, casting, others, 1);
  if (norm.rows == 0) return;
  const char* op = "fused_add_rms_norm_";
  const WrittenRows x_rows = written_rows(op, {"x", x}, norm.rows, norm.hidden),
                    residual_rows = written_rows(op, {"residual", residual}, norm.rows, norm.hidden);
  PRECAST_CHECK(!overlap(x_rows, residual_rows, norm),
                "fused_add_rms_norm_: x and residual overlap in memory; needed two that do not, as both are written");
  const ReadRows weight_row(weight);
  const char* weight_begin = weight_row.data();
  const char* weight_end = weight_begin + norm.hidden * norm.column_bytes();
  for (const WrittenRows& rows : {x_rows, residual_rows}) {
    const char* end = rows.data + ((norm.rows - 1) * rows.stride + norm.hidden) * norm.element_bytes();
    PRECAST_CHECK(end <= weight_begin || weight_end <= rows.data,
                  "fused_add_rms_norm_: weight overlaps x or residual in memory, which are written; needed its own");
  }
  ForwardRows work = describe(norm, weight_row, eps, casting);
  work.x = work.y = x_rows.data;
  work.x_stride = work.y_stride = x_rows.stride;
  work.residual = work.sum = residual_rows.data;
  work.residual_stride = work.sum_stride = residual_rows.stride;
  forward(norm, work);
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("rms_norm", "CPU", norm_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("fused_add_rms_norm", "CPU", add_norm_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("fused_add_rms_norm_", "CPU", add_norm_in_place_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("rms_norm", "CUDA", norm_op<forward_cuda>),
    PRECAST_IMPLEMENTATION("fused_add_rms_norm", "CUDA", add_norm_op<forward_cuda>),
    PRECAST_IMPLEMENTATION("fused_add_rms_norm_", "CUDA", add_norm_in_place_op<forward_cuda>),
};
PRECAST_FAMILY(rms_norm, kImplementations, &kernels);

}  // namespace
}  // namespace precast::rms_norm
