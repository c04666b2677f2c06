// The gated activations: checks, allocation, and the choice of a kernel.
#include "../cpu/cpu_level.h"
#include "../gpu/launch.h"
#include "entries.h"
#include "gated.h"

namespace precast::activations {
namespace {

// ---- which kernel serves which shape ----
//
//   x, y                                                  kernel                      a thread has
//   halves, rows and pointers at multiples of 16 bytes    one for each activation     one vector of 16 bytes per half
//   the same, for the activations without their own       others                      one vector of y
//   rows of 16 bytes or more at any address               shifted                     one aligned vector of y
//   anything else                                         any; others                 four elements, 64 apart; one
//
// Gates and factors in two tensors use the same kernels. Contiguous ones count as one row: one thread has its end.
// Blocks have 64 threads (kManyUnits: 256), numbered through the rows: a row need not fill a block. On an H200 (silu,
// bf16) at 32768 x 4096, one vector per thread takes 189 us, two 190, four 191. At 4096 x 4096, blocks of 64 threads
// take 29.4 us, of 128 30.2, of 256 29.6, of 512 30.1, a copy 28.6.

PRECAST_ENTRIES(ACTIVATIONS_KERNELS)

KernelFamily kernels = {"activations", kEntries, entry::kCount};

constexpr GatedKernels kKernels = {
    {PRECAST_BY_DTYPE(silu_and_mul, ), PRECAST_BY_DTYPE(gelu_and_mul, ), PRECAST_BY_DTYPE(gelu_tanh_and_mul, )},
    PRECAST_BY_DTYPE(gated_activation, _others),
    PRECAST_BY_DTYPE(gated_activation, _any),
    PRECAST_BY_DTYPE(gated_activation, _shifted),
    kThreads,
};

// Threads per multiprocessor up to which a launch starts early. Silu of 64 rows of 14336 gains from it (3.57 instead of
// 3.64 us), of 256 rows it loses (9.59 instead of 7.67 us), and of 8192 rows (278 instead of 163 us).
constexpr int64_t kEarlyThreads = 1024;

// ---- the two devices ----

void forward_cuda(const Gated& gated, const Places& at, void* y) {
  const int64_t bytes = gated.element_bytes(), row_bytes = gated.columns * bytes;
  ForwardArgs args;
  args.gate_stride = at.gate_stride * bytes;
  args.factor_stride = at.factor_stride * bytes;
  args.y_stride = row_bytes;
  args.activation = gated.activation;
  args.row_bytes = static_cast<unsigned>(row_bytes);
  args.alpha = gated.alpha;
  args.limit = gated.limit;
  args.step = static_cast<int>(at.step);
  const Chosen chosen =
      choose(kKernels, gated, misaligned_at(gated, at) | misalignment(y, gated.rows > 1 ? row_bytes : 0));
  args.form = chosen.form;
  args.gate_end = end_of(gated, at.gate, args.gate_stride);
  args.factor_end = at.factor == nullptr ? args.gate_end : end_of(gated, at.factor, args.factor_stride);
  void* arguments[] = {&args};
  for_launches(gated, chosen, [&](int64_t row, int64_t before, const Units& units, int tail, LaunchShape& shape) {
    args.early = shape.early = starts_early(shape, gated.device, kEarlyThreads);
    args.tail = tail;
    args.gate = at.gate + row * args.gate_stride + before * at.step;
    args.factor = at.factor == nullptr ? nullptr : at.factor + row * args.factor_stride + before * at.step;
    args.y = static_cast<char*>(y) + row * args.y_stride + before;
    args.units = units;
    launch(kernels, gated.device, chosen.entry, shape, arguments);
  });
}

constexpr int64_t kForwardPs = 350;  // an element, for parallel_rows

void forward_cpu(const Gated& gated, const Places& at, void* y) {
  ForwardRows work;
  work.gate = at.gate;
  work.factor = at.factor;
  work.y = y;
  work.columns = gated.columns;
  work.gate_stride = at.gate_stride;
  work.factor_stride = at.factor_stride;
  work.step = at.step;
  work.dtype = static_cast<int>(gated.dtype);
  work.activation = gated.activation;
  work.alpha = gated.alpha;
  work.limit = gated.limit;
  const ForwardFunction forward = PRECAST_AT_CPU_LEVEL(activations, forward);
  parallel_rows(gated.rows * pieces_of(gated.columns), piece_ps(gated.columns, kForwardPs),
                [&](int64_t begin, int64_t end) { forward(work, begin, end); });
}

// ---- the ops, the same for both devices ----

using Forward = void (*)(const Gated&, const Places&, void* y);

template <Forward forward>
Tensor gated_op(const Tensor& x, int64_t kind, double alpha, double limit) {
  const Gated gated = check_halves("gated_activation", x, kind, alpha, limit);
  constexpr int64_t kMaxDim = 64;
  const int64_t dim = x.dim();
  PRECAST_CHECK(dim <= kMaxDim, "gated_activation: x has %lld dimensions; at most 64 are supported", printable(dim));
  int64_t sizes[kMaxDim];
  memcpy(sizes, x.sizes(), static_cast<size_t>(dim) * sizeof(int64_t));
  sizes[dim - 1] = gated.columns;
  Tensor y = empty(sizes, dim, x.dtype_code(), x);
  if (gated.rows == 0) return y;
  const ReadRows rows(x);
  forward(gated, halves_of(gated, rows.data(), rows.stride()), y.mutable_data());
  return y;
}

template <Forward forward>
Tensor activation_op(const Tensor& x, const Tensor* up, int64_t kind, double alpha, double limit) {
  const Gated gated = check_pair("activation", x, up, kind, alpha, limit, nullptr);
  Tensor y = empty_contiguous_like(x);
  if (gated.rows == 0) return y;
  const ReadRows x_rows(x), up_rows(up);
  forward(gated, pair_of(gated, x_rows, up_rows), y.mutable_data());
  return y;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("gated_activation", "CPU", gated_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("activation", "CPU", activation_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("gated_activation", "CUDA", gated_op<forward_cuda>),
    PRECAST_IMPLEMENTATION("activation", "CUDA", activation_op<forward_cuda>),
};
PRECAST_FAMILY(activations, kImplementations, &kernels);

}  // namespace
}  // namespace precast::activations
