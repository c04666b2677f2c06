// The gradients of norms with a gate, and of norms by length. They are a family of their own, so that inference neither
// compiles nor loads them.
#include "../cpu/cpu_level.h"
#include "../gpu/walk.h"
#include "entries.h"
#include "gated_norm.h"

namespace precast::gated_norm {
namespace {

PRECAST_ENTRIES(RMS_NORM_GATED_BACKWARD_KERNELS)

KernelFamily kernels = {"rms_norm_gated_backward", kEntries, entry::kCount};

constexpr RowRule kRules[] = {
    {kAligned, 32, PRECAST_BY_DTYPE(gated_norm_backward, _v1), Form::kRegisters, 1},
    {kAligned, 512, PRECAST_BY_DTYPE(gated_norm_backward, _v1), Form::kSpread, 1},
    {0, 0, PRECAST_BY_DTYPE(gated_norm_backward, _any), Form::kAnyRow},
};

// Threads of workers on a multiprocessor, and floats of their sums at most.
constexpr int64_t kThreads = 768, kMostSums = int64_t{1} << 24;

struct Results {
  void* grad_gate;
  void* grad_weight;  // null: there is no weight
};

void backward_cuda(const char* op, const Gated& gated, BackwardArgs& args, const Results& results, const Tensor& x) {
  check_rows(op, gated);
  ForwardArgs& forward = args.forward;
  const int64_t rows = gated.norm.rows * gated.groups, row_bytes = forward.hidden * gated.norm.element_bytes();
  const uint64_t bits =
      misaligned(gated, forward) | misalignment(args.grad, args.grad_stride) | misalignment(args.grad_gate, row_bytes);
  const RowKernel choice =
      choose_row(kRules, kernels, {0, rows, forward.hidden, vectors_of(bits, row_bytes), 0, gated.norm.device});
  forward.vectors = choice.vectors;
  forward.rows = static_cast<unsigned>(rows);
  // A multiple of the groups, as all rows of a worker are of one.
  int64_t lines = multiprocessors(gated.norm.device) * kThreads / choice.threads / gated.groups;
  const int64_t columns = forward.hidden * gated.groups, fitting = kMostSums / columns;
  for (const int64_t most : {fitting, gated.norm.rows}) lines = lines < most ? lines : most;
  if (lines < 1) lines = 1;
  args.workers = static_cast<unsigned>(lines * gated.groups);
  const int64_t sizes[] = {results.grad_weight != nullptr ? lines : 0, columns};
  const Tensor parts = empty(sizes, 2, float32_code(), x);
  args.parts = results.grad_weight != nullptr ? static_cast<float*>(parts.mutable_data()) : nullptr;
  void* arguments[] = {&args};
  const LaunchShape shape = {(args.workers + choice.rows - 1) / choice.rows, 1, choice.threads, choice.rows};
  launch(kernels, gated.norm.device, choice.kernel[gated.norm.dtype], shape, arguments);
  if (results.grad_weight == nullptr) return;
  ColumnArgs sums = {args.parts, static_cast<char*>(results.grad_weight), columns, static_cast<unsigned>(lines),
                     static_cast<int>(gated.norm.columns_dtype())};
  Norm all = gated.norm;
  all.hidden = columns;
  void* column_arguments[] = {&sums};
  launch(kernels, gated.norm.device, entry::gated_norm_backward_columns, columns_shape(all, lines, 1),
         column_arguments);
}

void backward_cpu(const char*, const Gated& gated, BackwardArgs& args, const Results& results, const Tensor& x) {
  const auto backward = PRECAST_AT_CPU_LEVEL(gated_norm, backward);
  const auto reduce = PRECAST_AT_CPU_LEVEL(gated_norm, reduce);
  const int64_t bytes = gated.norm.element_bytes();
  for (int64_t group = 0; group < gated.groups; ++group) {
    GatedRows rows = rows_of(gated, args.forward, group);
    const int64_t offset = group * rows.hidden, chunks = cut_into_chunks(gated.norm, &rows.chunk_rows);
    const int64_t sizes[] = {chunks, rows.hidden};
    const Tensor parts = empty(sizes, 2, float64_code(), x);
    rows.parts = static_cast<double*>(parts.mutable_data());
    rows.grad = args.grad + offset * bytes;
    rows.grad_stride = args.grad_stride / bytes;
    rows.grad_gate = args.grad_gate != nullptr ? args.grad_gate + offset * bytes : nullptr;
    parallel_rows(chunks, rows.hidden * rows.chunk_rows * 1500,
                  [&](int64_t begin, int64_t end) { backward(rows, begin, end); });
    if (results.grad_weight == nullptr) continue;
    char* const result = static_cast<char*>(results.grad_weight) + offset * gated.norm.column_bytes();
    for_columns(gated.norm, chunks, [&](int64_t begin, int64_t end) {
      reduce(rows.parts, chunks, rows.hidden, result, static_cast<int>(gated.norm.columns_dtype()), begin, end);
    });
  }
}

using Backward = void (*)(const char* op, const Gated&, BackwardArgs&, const Results&, const Tensor& x);

template <Backward backward>
void run(const char* op, const Gated& gated, const Tensor& grad, const Tensor& x, const Tensor* gate,
         const Tensor* weight, const Tensor& grad_x, const Results& results, const Options& options) {
  if (gated.norm.hidden == 0) return;
  const ReadRows x_rows(x), gate_rows(gate), weight_row(weight), grad_rows(grad);
  BackwardArgs args = {};
  args.forward = args_of(gated, x_rows, gate_rows, weight_row, grad_x.mutable_data(), options);
  args.grad = grad_rows.data();
  args.grad_stride = grad_rows.stride() * gated.norm.element_bytes();
  args.grad_gate = static_cast<char*>(results.grad_gate);
  backward(op, gated, args, results, x);
}

// The gradients of x, of the gate, and of the weight, or of nothing.
template <Backward backward>
TensorTriple gated_op(const Tensor& grad, const Tensor& x, const Tensor& gate, const Tensor* weight, double eps,
                      int64_t casting, bool norm_first, bool sigmoid, int64_t group) {
  constexpr const char* kOp = "rms_norm_gated_backward";
  const Gated gated = check_gated(kOp, x, &gate, weight, &grad, eps, casting, group);
  const int64_t none = 0;
  TensorTriple result = {empty_contiguous_like(x), empty_contiguous_like(x),
                         weight != nullptr ? empty_contiguous_like(*weight) : empty(&none, 1, x.dtype_code(), x)};
  const Results results = {result.second.mutable_data(), weight != nullptr ? result.third.mutable_data() : nullptr};
  run<backward>(kOp, gated, grad, x, &gate, weight, result.first, results, {eps, casting, norm_first, sigmoid, false});
  return result;
}

template <Backward backward>
Tensor length_op(const Tensor& grad, const Tensor& x, double eps) {
  constexpr const char* kOp = "l2_norm_backward";
  const Gated gated = check_gated(kOp, x, nullptr, nullptr, &grad, eps, 0, 0);
  Tensor result = empty_contiguous_like(x);
  if (gated.norm.rows > 0) {
    run<backward>(kOp, gated, grad, x, nullptr, nullptr, result, {nullptr, nullptr}, {eps, 0, true, false, true});
  }
  return result;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("rms_norm_gated_backward", "CPU", gated_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("l2_norm_backward", "CPU", length_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("rms_norm_gated_backward", "CUDA", gated_op<backward_cuda>),
    PRECAST_IMPLEMENTATION("l2_norm_backward", "CUDA", length_op<backward_cuda>),
};
PRECAST_FAMILY(rms_norm_gated_backward, kImplementations, &kernels);

}  // namespace
}  // namespace precast::gated_norm
