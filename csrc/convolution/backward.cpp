// The gradients of causal convolutions: checks, allocation, and the choice of a kernel. They are a family of their own,
// so that inference neither compiles nor loads them.
#include "../gpu/launch.h"
#include "../gpu/walk.h"
#include "conv.h"
#include "entries.h"

namespace precast::causal_conv1d {
namespace {

// Channels last: w4 or w8, four channels per thread. Tokens last: rows, a vector of tokens per lane. Otherwise `any`.
// On an H100, bf16 of 4 x 2048 x 8192 takes 176 us by w4 and 188 by rows, instead of 1578 by `any`; a copy of x
// takes 90.

PRECAST_ENTRIES(CAUSAL_CONV1D_BACKWARD_KERNELS)

KernelFamily kernels = {"causal_conv1d_backward", kEntries, entry::kCount};

// A thread has so many channels, of a chunk that leaves so many threads to each multiprocessor: each chunk costs a line
// of sums. It has at least so many tokens.
constexpr int64_t kChannels = 4, kThreadsWanted = 1024, kLeastChunk = 32;

// Whether the kernel for rows serves a call.
bool has_rows(const Call& call, const BackwardArgs& args) {
  const int64_t bytes = call.bytes();
  uint64_t bits = static_cast<uint64_t>(call.tokens * bytes);
  for (const Lines& one : {args.walk.x, args.grad, args.grad_x}) bits |= misaligned(by_token(one), bytes, 16);
  return bits % 16 == 0 && call.tokens > 0 && args.walk.cut == kWhole && call.width <= 4 &&
         call.rows * call.channels < int64_t{1} << 26;
}

// A warp has a channel of a row, or a part of it if there are few.
LaunchShape divide_rows(const Call& call, Walk& walk) {
  constexpr int64_t kTurn = 31, kWarps = kThreads / 32;
  const int64_t vectors = call.tokens * call.bytes() / 16, warps = call.rows * call.channels;
  const int64_t wanted = kThreadsWanted / 32 * multiprocessors(call.columns.device) * 2;
  const int64_t parts = warps < wanted ? (wanted + warps - 1) / warps : 1, turns = (vectors + kTurn - 1) / kTurn;
  walk.chunk = static_cast<int>((turns + parts - 1) / parts * kTurn);
  walk.chunks = division_by((vectors + walk.chunk - 1) / walk.chunk);
  walk.total = static_cast<unsigned>(warps * walk.chunks.divisor);
  return {static_cast<uint32_t>((walk.total + kWarps - 1) / kWarps), 1, kThreads};
}

// ---- the two devices ----

void backward_cuda(const char*, const Call& call, BackwardArgs& args, void* parameters, const Tensor& x) {
  Walk& walk = args.walk;
  const int64_t bytes = call.bytes(), unit = kChannels * bytes, device = call.columns.device;
  uint64_t bits = static_cast<uint64_t>(call.channels % kChannels);
  for (const Lines& one : {walk.x, args.grad, args.grad_x}) {
    bits |= misaligned(one, bytes, static_cast<uint64_t>(unit));
  }
  const bool vectors = bits == 0, rows = bits != 0 && has_rows(call, args);
  const ByDType kernel = rows              ? PRECAST_BY_DTYPE(causal_conv1d_backward, _rows)
                         : !vectors        ? PRECAST_BY_DTYPE(causal_conv1d_backward, _any)
                         : call.width <= 4 ? PRECAST_BY_DTYPE(causal_conv1d_backward, _w4)
                                           : PRECAST_BY_DTYPE(causal_conv1d_backward, _w8);
  LaunchShape shape;
  if (rows) {
    shape = divide_rows(call, walk);
  } else {
    const int64_t each = vectors ? kChannels : 1, units = call.channels / each;
    const int64_t tokens = call.tokens * call.rows * units / (kThreadsWanted * multiprocessors(device));
    divide(walk, each, tokens > kLeastChunk ? tokens : kLeastChunk);
    shape = shape_of_units(walk.total);
  }
  const int64_t lines = call.rows * walk.chunks.divisor, sizes[] = {lines, args.columns};
  const Tensor parts = empty(sizes, 2, float32_code(), x);
  args.parts = static_cast<float*>(parts.mutable_data());
  void* arguments[] = {&args};
  launch(kernels, device, kernel[call.columns.dtype], shape, arguments);

  ColumnArgs columns = {args.parts, static_cast<char*>(parameters), args.columns, static_cast<unsigned>(lines),
                        static_cast<int>(call.columns.columns_dtype())};
  Norm norm = call.columns;
  norm.hidden = args.columns;
  void* column_arguments[] = {&columns};
  launch(kernels, device, entry::causal_conv1d_backward_columns, columns_shape(norm, lines, 1), column_arguments);
}

constexpr int64_t kBackwardPs = 2000;  // an element, for parallel_rows

void backward_cpu(const char* op, const Call& call, BackwardArgs& args, void* parameters, const Tensor&) {
  const Segments segments = segments_of(op, args.walk);
  const BackwardTiles work = {
      tiles_of(call, args.walk, segments), args.grad, args.grad_final, args.grad_x, args.grad_initial,
      static_cast<char*>(parameters)};
  const auto backward = PRECAST_AT_CPU_LEVEL(causal_conv1d, backward);
  parallel_rows(work.tiles.tiles(), work.tiles.channels() * call.rows * call.tokens * kBackwardPs,
                [&](int64_t begin, int64_t end) { backward(work, begin, end); });
}

// ---- the op, the same for both devices ----

using Backward = void (*)(const char* op, const Call&, BackwardArgs&, void* parameters, const Tensor& x);

// Returns the gradients of x, of weight and bias one after the other, and of the initial state, or of nothing.
template <Backward backward>
TensorTriple backward_op(const Tensor& grad, const Tensor* grad_state, const Tensor& x, const Tensor& weight,
                         const Tensor* bias, const Tensor* initial, const Tensor* index, const Tensor* starts,
                         bool silu) {
  constexpr const char* kOp = "causal_conv1d_backward";
  const Tensors tensors = {x, weight, bias};
  const Cuts cuts = {initial, index, starts};
  const Call call = check_call(kOp, tensors, false);
  check_cuts(kOp, call, x, cuts);
  check_kind(kOp, {"grad", grad}, x);
  check_shape(kOp, {"grad", grad}, x);
  if (grad_state != nullptr) check_state(kOp, call, {"grad_state", *grad_state}, cuts.sequences(call), x);
  const int64_t columns = call.parameters(bias != nullptr);
  TensorTriple result = {empty_in_order(x), empty(&columns, 1, weight.dtype_code(), x),
                         initial != nullptr ? empty_states(call, cuts.sequences(call), x) : nothing_like(x)};
  if (call.channels == 0) return result;
  const Parameters parameters(tensors);
  const Tensor ordered =
      has_channels_last(grad) == has_channels_last(x) ? another(grad) : with_strides_of(grad, result.first);
  BackwardArgs args = {};
  args.walk = walk_of(call, tensors, parameters, cuts, silu);
  args.grad = lines_of(&ordered, call.bytes());
  args.grad_final = lines_of(grad_state, call.bytes());
  args.grad_x = lines_of(&result.first, call.bytes());
  args.grad_initial = lines_of(initial != nullptr ? &result.third : nullptr, call.bytes());
  args.columns = columns;
  backward(kOp, call, args, result.second.mutable_data(), x);
  return result;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("causal_conv1d_backward", "CPU", backward_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("causal_conv1d_backward", "CUDA", backward_op<backward_cuda>),
};
PRECAST_FAMILY(causal_conv1d_backward, kImplementations, &kernels);

}  // namespace
}  // namespace precast::causal_conv1d
