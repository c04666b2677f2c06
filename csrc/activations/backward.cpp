// The gradients of the gated activations: checks, allocation, and the choice of a kernel. They are a family of their
// own, so that inference neither compiles nor loads them.
#include "../cpu/cpu_level.h"
#include "../gpu/launch.h"
#include "entries.h"
#include "gated.h"

namespace precast::activations {
namespace {

// The choice of kernels is that of host.cpp, with grad and the two halves of grad_x aligned as well.

PRECAST_ENTRIES(ACTIVATIONS_BACKWARD_KERNELS)

KernelFamily kernels = {"activations_backward", kEntries, entry::kCount};

constexpr GatedKernels kKernels = {
    {PRECAST_BY_DTYPE(silu_backward, ), PRECAST_BY_DTYPE(gelu_backward, ), PRECAST_BY_DTYPE(gelu_tanh_backward, )},
    PRECAST_BY_DTYPE(gated_backward, _others),
    PRECAST_BY_DTYPE(gated_backward, _any),
    PRECAST_BY_DTYPE(gated_backward, _shifted),
    kLentVectors,
};

// ---- the two devices ----

void backward_cuda(const Gated& gated, const Places& at, const ReadRows& grad, const Places& result) {
  const int64_t bytes = gated.element_bytes();
  BackwardArgs args;
  args.grad_stride = grad.stride() * bytes;
  args.gate_stride = at.gate_stride * bytes;
  args.factor_stride = at.factor_stride * bytes;
  args.grad_x_stride = result.gate_stride * bytes;
  args.activation = gated.activation;
  args.alpha = gated.alpha;
  args.limit = gated.limit;
  args.step = static_cast<int>(at.step);
  args.row_bytes = static_cast<unsigned>(gated.columns * bytes);
  args.grad_end = end_of(gated, grad.data(), args.grad_stride);
  args.gate_end = end_of(gated, at.gate, args.gate_stride);
  args.factor_end = at.factor == nullptr ? args.gate_end : end_of(gated, at.factor, args.factor_stride);
  const uint64_t misaligned = misaligned_at(gated, at) | misaligned_at(gated, result);
  const Chosen chosen =
      choose(kKernels, gated, misaligned | misalignment(grad.data(), gated.rows > 1 ? args.grad_stride : 0));
  args.form = chosen.form;
  void* arguments[] = {&args};
  for_launches(gated, chosen, [&](int64_t row, int64_t before, const Units& units, int tail, const LaunchShape& shape) {
    const int64_t there = before * at.step;
    args.tail = tail;
    args.grad = grad.data() + row * args.grad_stride + before;
    args.gate = at.gate + row * args.gate_stride + there;
    args.grad_gate = result.gate + row * args.grad_x_stride + there;
    args.factor = at.factor == nullptr ? nullptr : at.factor + row * args.factor_stride + there;
    args.grad_factor = at.factor == nullptr ? nullptr : result.factor + row * args.grad_x_stride + there;
    args.units = units;
    launch(kernels, gated.device, chosen.entry, shape, arguments);
  });
}

constexpr int64_t kBackwardPs = 600;  // an element, for parallel_rows

void backward_cpu(const Gated& gated, const Places& at, const ReadRows& grad, const Places& result) {
  BackwardRows work;
  work.grad = grad.data();
  work.gate = at.gate;
  work.factor = at.factor;
  work.grad_gate = result.gate;
  work.grad_factor = result.factor;
  work.columns = gated.columns;
  work.grad_stride = grad.stride();
  work.gate_stride = at.gate_stride;
  work.factor_stride = at.factor_stride;
  work.grad_x_stride = result.gate_stride;
  work.step = at.step;
  work.dtype = static_cast<int>(gated.dtype);
  work.activation = gated.activation;
  work.alpha = gated.alpha;
  work.limit = gated.limit;
  const BackwardFunction backward = PRECAST_AT_CPU_LEVEL(activations, backward);
  parallel_rows(gated.rows * pieces_of(gated.columns), piece_ps(gated.columns, kBackwardPs),
                [&](int64_t begin, int64_t end) { backward(work, begin, end); });
}

// ---- the ops, the same for both devices ----

void check_half(const char* op, const Tensor& grad, const Tensor& x) {
  check_kind(op, {"grad", grad}, x);
  const int64_t dim = x.dim();
  bool fits = grad.dim() == dim && grad.sizes()[dim - 1] * 2 == x.sizes()[dim - 1];
  for (int64_t i = 0; fits && i + 1 < dim; ++i) fits = grad.sizes()[i] == x.sizes()[i];
  PRECAST_CHECK(fits, "%s: grad has shape %s and x has shape %s; needed the shape of x with half its last dimension",
                op, shape_of(grad).text, shape_of(x).text);
}

using Backward = void (*)(const Gated&, const Places& at, const ReadRows& grad, const Places& result);

template <Backward backward>
Tensor gated_backward_op(const Tensor& grad, const Tensor& x, int64_t kind, double alpha, double limit) {
  constexpr const char* kOp = "gated_activation_backward";
  const Gated gated = check_halves(kOp, x, kind, alpha, limit);
  check_half(kOp, grad, x);
  Tensor grad_x = empty_contiguous_like(x);
  if (gated.rows == 0) return grad_x;
  const ReadRows x_rows(x), grad_rows(grad);
  backward(gated, halves_of(gated, x_rows.data(), x_rows.stride()), grad_rows,
           halves_of(gated, grad_x.mutable_data(), 2 * gated.columns));
  return grad_x;
}

// The second result is empty without `up`.
template <Backward backward>
TensorPair activation_backward_op(const Tensor& grad, const Tensor& x, const Tensor* up, int64_t kind, double alpha,
                                  double limit) {
  const Gated gated = check_pair("activation_backward", x, up, kind, alpha, limit, &grad);
  const int64_t nothing = 0;
  TensorPair result(empty_contiguous_like(x),
                    up == nullptr ? empty(&nothing, 1, x.dtype_code(), x) : empty_contiguous_like(x));
  if (gated.rows == 0) return result;
  const ReadRows x_rows(x), up_rows(up), grad_rows(grad);
  char* const first = static_cast<char*>(result.first.mutable_data());
  char* const second = up == nullptr ? nullptr : static_cast<char*>(result.second.mutable_data());
  const bool swap = gated.gate_is_second;
  const Places grads = {swap ? second : first, swap ? first : second, gated.columns, gated.columns, 1};
  backward(gated, pair_of(gated, x_rows, up_rows), grad_rows, grads);
  return result;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("gated_activation_backward", "CPU", gated_backward_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("activation_backward", "CPU", activation_backward_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("gated_activation_backward", "CUDA", gated_backward_op<backward_cuda>),
    PRECAST_IMPLEMENTATION("activation_backward", "CUDA", activation_backward_op<backward_cuda>),
};
PRECAST_FAMILY(activations_backward, kImplementations, &kernels);

}  // namespace
}  // namespace precast::activations
