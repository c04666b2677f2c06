// The forward ops of norms with a gate, and of norms by length: checks, allocation, and the choice of a kernel.
#include "gated_norm.h"

#include "../cpu/cpu_level.h"
#include "entries.h"

namespace precast::gated_norm {
namespace {

PRECAST_ENTRIES(RMS_NORM_GATED_KERNELS)

KernelFamily kernels = {"rms_norm_gated", kEntries, entry::kCount};

// Rows of up to 32 vectors share a warp. On an H100 in bf16, 262144 x 128 takes 74.5 us and 8192 x 8192 in groups of
// 1024 takes 147; copies of as many bytes take 69.6 and 136. A float32 weight with narrower rows is served by all
// kernels.
constexpr RowRule kRules[] = {
    {kAligned, 32, PRECAST_BY_DTYPE(gated_norm, _v1), Form::kRegisters, 1},
    {kAligned, 1024, PRECAST_BY_DTYPE(gated_norm, _v1), Form::kSpread, 1},
    {0, 0, PRECAST_BY_DTYPE(gated_norm, _any), Form::kAnyRow},
};

void forward_cuda(const char* op, const Gated& gated, ForwardArgs& args) {
  check_rows(op, gated);
  const int64_t rows = gated.norm.rows * gated.groups, row_bytes = args.hidden * gated.norm.element_bytes();
  const RowKernel choice = choose_row(
      kRules, kernels, {0, rows, args.hidden, vectors_of(misaligned(gated, args), row_bytes), 0, gated.norm.device});
  args.vectors = choice.vectors;
  void* arguments[] = {&args};
  args.rows = static_cast<unsigned>(rows);
  LaunchShape shape = {static_cast<uint32_t>((rows + choice.rows - 1) / choice.rows), 1, choice.threads, choice.rows};
  args.early = shape.early = starts_early(shape, gated.norm.device);
  launch(kernels, gated.norm.device, choice.kernel[gated.norm.dtype], shape, arguments);
}

void forward_cpu(const char*, const Gated& gated, ForwardArgs& args) {
  const auto forward = PRECAST_AT_CPU_LEVEL(gated_norm, forward);
  for (int64_t group = 0; group < gated.groups; ++group) {
    const GatedRows rows = rows_of(gated, args, group);
    parallel_rows(rows.rows, rows.hidden * 600, [&](int64_t begin, int64_t end) { forward(rows, begin, end); });
  }
}

using Forward = void (*)(const char* op, const Gated&, ForwardArgs&);

template <Forward forward>
Tensor norm(const char* op, const Tensor& x, const Tensor* gate, const Tensor* weight, int64_t group,
            const Options& options) {
  const Gated gated = check_gated(op, x, gate, weight, nullptr, options.eps, options.casting, group);
  Tensor y = empty_contiguous_like(x);
  if (gated.norm.rows == 0) return y;
  const ReadRows x_rows(x), gate_rows(gate), weight_row(weight);
  ForwardArgs args = args_of(gated, x_rows, gate_rows, weight_row, y.mutable_data(), options);
  forward(op, gated, args);
  return y;
}

template <Forward forward>
Tensor gated_op(const Tensor& x, const Tensor& gate, const Tensor* weight, double eps, int64_t casting, bool norm_first,
                bool sigmoid, int64_t group) {
  return norm<forward>("rms_norm_gated", x, &gate, weight, group, {eps, casting, norm_first, sigmoid, false});
}

template <Forward forward>
Tensor length_op(const Tensor& x, double eps) {
  return norm<forward>("l2_norm", x, nullptr, nullptr, 0, {eps, 0, true, false, true});
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("rms_norm_gated", "CPU", gated_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("l2_norm", "CPU", length_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("rms_norm_gated", "CUDA", gated_op<forward_cuda>),
    PRECAST_IMPLEMENTATION("l2_norm", "CUDA", length_op<forward_cuda>),
};
PRECAST_FAMILY(rms_norm_gated, kImplementations, &kernels);

}  // namespace
}  // namespace precast::gated_norm
