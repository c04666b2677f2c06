// The gradient of softmax: checks, allocation, and the choice of a kernel. It is a family of its own, so that inference
// neither compiles nor loads it.
#include "../cpu/cpu_level.h"
#include "../gpu/row_policy.h"
#include "args.h"
#include "entries.h"
#include "rows.h"

namespace precast::softmax {
namespace {

// ---- which kernel serves which row ----
//
// Rows of up to 2048 vectors of 16 bytes stay in registers, with four vectors each of the gradient and the result per
// thread. One warp handles a row of up to 128 vectors, and part of a warp a row of up to 64. A cluster of blocks
// handles wider rows without a diagonal on GPUs that have clusters. The `any` kernel handles the rest and reads each
// row twice.

PRECAST_ENTRIES(SOFTMAX_BACKWARD_KERNELS)

KernelFamily kernels = {"softmax_backward", kEntries, entry::kCount};

constexpr ByDType kV4 = PRECAST_BY_DTYPE(softmax_backward, _v4), kAny = PRECAST_BY_DTYPE(softmax_backward, _any),
                  kShifted = PRECAST_BY_DTYPE(softmax_backward, _shifted),
                  kWide = PRECAST_BY_DTYPE(softmax_backward, _wide);

constexpr uint32_t kPlainRow = kFirstOfFamily;

// At 2048 x 128256, forward and backward take 662 us with eight blocks of 512 threads, and 723 with four of 1024. Each
// row has its own cluster: clusters that loop over rows cost 6 % at 4096 x 32000.
constexpr ClusterForm kForm = {4, 2, 512, 2};

constexpr RowRule kRules[] = {
    {kAligned, 4 * 512, kV4, Form::kRegisters, 4},
    {kUnaligned, 4 * 512, kShifted, Form::kRegisters, 4, 64},
    {kAligned | kPlainRow | kClusters, 4 * 8 * 1024, kWide, Form::kCluster, 0, 0, kForm},
    {0, 0, kAny, Form::kAnyRow},
};

void backward_cuda(const Rows& rows, const BackwardRows& work) {
  const int64_t bytes = rows.element_bytes(), row_bytes = rows.columns * bytes;
  BackwardArgs args;
  args.grad_stride = work.grad_stride * bytes;
  args.y_stride = work.y_stride * bytes;
  args.grad_x_stride = row_bytes;
  const uint64_t misaligned = misalignment(work.grad, args.grad_stride) | misalignment(work.y, args.y_stride) |
                              misalignment(work.grad_x, row_bytes);
  const Placed grad_x = {work.grad_x, row_bytes};
  const bool alike = lies_alike({work.grad, args.grad_stride}, grad_x) && lies_alike({work.y, args.y_stride}, grad_x);
  const RowKernel choice =
      choose_row(kRules, kernels,
                 {work.causal ? 0u : kPlainRow, rows.rows, rows.columns, vectors_of(misaligned, row_bytes),
                  alike ? shifted_vectors(row_bytes, bytes) : 0, rows.device});
  args.columns = rows.columns;
  args.queries = work.queries;
  args.diagonal = work.diagonal;
  args.vectors = choice.vectors;
  args.scale = work.scale;
  args.causal = work.causal;
  args.peeled = misaligned != 0 && alike;
  const int entry = choice.kernel[rows.dtype];
  void* arguments[] = {&args};
  for_launches(rows.rows, choice, [&](int64_t begin, unsigned count, LaunchShape& shape) {
    args.early = shape.early = starts_early(shape, rows.device);
    args.grad = static_cast<const char*>(work.grad) + begin * args.grad_stride;
    args.y = static_cast<const char*>(work.y) + begin * args.y_stride;
    args.grad_x = static_cast<char*>(work.grad_x) + begin * args.grad_x_stride;
    args.first_row = begin;
    args.rows = count;
    launch(kernels, rows.device, entry, shape, arguments);
  });
}

constexpr int64_t kBackwardPs = 150;  // an element, for parallel_rows

void backward_cpu(const Rows& rows, const BackwardRows& work) {
  const BackwardFunction backward = PRECAST_AT_CPU_LEVEL(softmax, backward);
  parallel_rows(rows.rows, rows.columns * kBackwardPs, [&](int64_t begin, int64_t end) { backward(work, begin, end); });
}

using Backward = void (*)(const Rows&, const BackwardRows&);

template <Backward backward>
Tensor backward_op(const Tensor& grad, const Tensor& y, double scale, bool causal) {
  const char* op = "scaled_softmax_backward";
  const Rows rows = check_rows(op, "y", y, causal ? Shape::kQueries : Shape::kAny);
  check_kind(op, {"grad", grad}, y, "y");
  check_shape(op, {"grad", grad}, y, "y");
  Tensor grad_x = empty_contiguous_like(y);
  if (rows.rows == 0) return grad_x;
  const ReadRows grad_rows(grad), y_rows(y);
  BackwardRows work = {};
  work.grad = grad_rows.data();
  work.grad_stride = grad_rows.stride();
  work.y = y_rows.data();
  work.y_stride = y_rows.stride();
  work.grad_x = grad_x.mutable_data();
  work.rows = rows.rows;
  work.columns = rows.columns;
  work.queries = causal ? rows.queries : 1;
  work.diagonal = rows.columns - rows.queries;
  work.scale = static_cast<float>(scale);
  work.dtype = static_cast<int>(rows.dtype);
  work.causal = causal;
  backward(rows, work);
  return grad_x;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("scaled_softmax_backward", "CPU", backward_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("scaled_softmax_backward", "CUDA", backward_op<backward_cuda>),
};
PRECAST_FAMILY(softmax_backward, kImplementations, &kernels);

}  // namespace
}  // namespace precast::softmax
