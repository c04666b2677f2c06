// The gradients of the gated activations: checks, allocation, and the choice of a kernel. They are a family of their
// own, so that inference neither compiles nor loads them.
#include "../common/cpu_level.h"
#include "../common/launch.h"
#include "gated.h"

namespace precast::activations {
namespace {

// The choice of kernels is that of host.cpp, with grad and the two halves of grad_x aligned as well. There is no
// `shifted` kernel, because the halves of grad_x differ in their misalignment to 16 bytes.

constexpr Entry kEntries[] = {
    {"silu_backward_f32"},  {"gelu_backward_f32"},  {"gelu_tanh_backward_f32"},  {"gated_backward_f32_any"},
    {"silu_backward_f16"},  {"gelu_backward_f16"},  {"gelu_tanh_backward_f16"},  {"gated_backward_f16_any"},
    {"silu_backward_bf16"}, {"gelu_backward_bf16"}, {"gelu_tanh_backward_bf16"}, {"gated_backward_bf16_any"},
};
constexpr int kEntryCount = sizeof(kEntries) / sizeof(kEntries[0]);

KernelFamily kernels = {"activations_backward", kEntries, kEntryCount};

// ---- the two devices ----

void backward_cuda(const Gated& gated, const BackwardRows& work) {
  const int64_t bytes = gated.element_bytes(), row_bytes = gated.columns * bytes;
  BackwardArgs args;
  args.grad_stride = work.grad_stride * bytes;
  args.x_stride = work.x_stride * bytes;
  args.grad_x_stride = work.grad_x_stride * bytes;
  args.activation = work.activation;
  const Chosen chosen =
      choose(gated,
             misalignment(work.grad, args.grad_stride) | misalignment(work.gate, args.x_stride) |
                 misalignment(work.factor, row_bytes) | misalignment(work.grad_gate, args.grad_x_stride),
             4);
  void* arguments[] = {&args};
  for_launches(gated, chosen, [&](int64_t row, int64_t before, const Units& units, const LaunchShape& shape) {
    const int64_t x = row * args.x_stride + before, grad_x = row * args.grad_x_stride + before;
    args.grad = static_cast<const char*>(work.grad) + row * args.grad_stride + before;
    args.gate = static_cast<const char*>(work.gate) + x;
    args.factor = static_cast<const char*>(work.factor) + x;
    args.grad_gate = static_cast<char*>(work.grad_gate) + grad_x;
    args.grad_factor = static_cast<char*>(work.grad_factor) + grad_x;
    args.units = units;
    launch(kernels, gated.device, chosen.entry, shape, arguments);
  });
}

void backward_cpu(const Gated& gated, const BackwardRows& work) {
  const BackwardFunction backward = PRECAST_AT_CPU_LEVEL(activations, backward);
  parallel_for(0, gated.rows * pieces_of(gated.columns), grain_pieces(gated.columns),
               [&](int64_t begin, int64_t end) { backward(work, begin, end); });
}

// ---- the op, the same for both devices ----

constexpr const char* kOp = "gated_activation_backward";

void check_grad(const Tensor& grad, const Tensor& x) {
  check_kind(kOp, {"grad", grad}, x);
  const int64_t dim = x.dim();
  bool fits = grad.dim() == dim && grad.sizes()[dim - 1] * 2 == x.sizes()[dim - 1];
  for (int64_t i = 0; fits && i + 1 < dim; ++i) fits = grad.sizes()[i] == x.sizes()[i];
  PRECAST_CHECK(fits, "%s: grad has shape %s and x has shape %s; needed the shape of x with half its last dimension",
                kOp, shape_of(grad).text, shape_of(x).text);
}

using Backward = void (*)(const Gated&, const BackwardRows&);

template <Backward backward>
Tensor gated_backward_op(const Tensor& grad, const Tensor& x, int64_t kind) {
  const Gated gated = check_gated(kOp, x, kind);
  check_grad(grad, x);
  Tensor grad_x = empty_contiguous_like(x);
  if (gated.rows == 0) return grad_x;
  const ReadRows x_rows(x), grad_rows(grad);
  const int64_t gate = gated.gate_offset() * gated.element_bytes();
  const int64_t factor = gated.factor_offset() * gated.element_bytes();
  char* result = static_cast<char*>(grad_x.mutable_data());
  BackwardRows work;
  work.grad = grad_rows.data();
  work.gate = x_rows.data() + gate;
  work.factor = x_rows.data() + factor;
  work.grad_gate = result + gate;
  work.grad_factor = result + factor;
  work.columns = gated.columns;
  work.grad_stride = grad_rows.stride();
  work.x_stride = x_rows.stride();
  work.grad_x_stride = 2 * gated.columns;
  work.dtype = static_cast<int>(gated.dtype);
  work.activation = gated.activation;
  backward(gated, work);
  return grad_x;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("gated_activation_backward", "CPU", gated_backward_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("gated_activation_backward", "CUDA", gated_backward_op<backward_cuda>),
};
PRECAST_FAMILY(activations_backward, kImplementations, &kernels);

}  // namespace
}  // namespace precast::activations
