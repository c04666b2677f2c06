// Causal convolutions: checks, allocation, and the choice of a kernel.
#include "../gpu/launch.h"
#include "../gpu/row_launch.h"
#include "../host/apart.h"
#include "conv.h"
#include "entries.h"

namespace precast::causal_conv1d {
namespace {

// ---- which kernel serves which layout ----
//
//   x, y                                                          kernel   a thread has
//   channels last, all at multiples of 16 bytes, width up to 4    w4       16 bytes of channels of 32 tokens or fewer
//   the same, width 5 to 8                                        w8       four channels of them
//   tokens last, the same, a row is a sequence                    rows     32 bytes of tokens of a channel
//   anything else                                                 any      one channel of 32 tokens, or of 8
//
// On an H100 in bf16, 4 taps and silu, w4 takes 399 us at 8 x 4096 x 8192 and rows 404, where a copy takes 443; 37 us
// at 1 x 2048 x 10240, a copy 31. Before it had two vectors per thread and taps of its own width, rows took 555 us.
//
// An update has 16 bytes of channels (w4, or s3 and s4 for states with 3 or 4 neighbouring tokens), or one (any), of
// all new tokens of a sequence. 512 states of 8192 channels and 3 tokens take 27.7 us, in either order, and one
// state 2.1; a copy takes 25.3 and 1.3.

PRECAST_ENTRIES(CAUSAL_CONV1D_KERNELS)

KernelFamily kernels = {"causal_conv1d", kEntries, entry::kCount};

constexpr int64_t kWideChannels = 4;  // of a thread of w8, whose taps need the registers

// Tokens of a chunk. Loading the taps and the tokens before it costs as much as so many tokens.
constexpr int64_t kChunk = 32, kChunkStep = 4, kAlongChunk = 8, kOverhead = 5;

// Threads of a walk that a multiprocessor holds at a time.
constexpr int64_t kResident = 512;

// The chunk that wastes the least, of loading and of the last blocks, which have the device for themselves.
int64_t best_chunk(int64_t lines, int64_t tokens, int device) {
  const double held = static_cast<double>(kResident * multiprocessors(device));
  int64_t best = kChunk;
  double least = 0;
  for (int64_t chunk = kChunk; chunk >= kChunkStep; chunk -= kChunkStep) {
    const double turns = static_cast<double>(lines * ((tokens + chunk - 1) / chunk)) / held;
    const double time = (turns > 8 ? turns : static_cast<double>(static_cast<int64_t>(turns) + 1)) *
                        static_cast<double>(chunk + kOverhead);
    if (chunk == kChunk || time < least) {
      best = chunk;
      least = time;
    }
  }
  return best;
}

// ---- the two devices ----

void forward_cuda(const char*, const Call& call, ForwardArgs& args) {
  Walk& walk = args.walk;
  const int64_t bytes = call.bytes(), each = 16 / bytes;
  ByDType kernel = PRECAST_BY_DTYPE(causal_conv1d, _any);
  const Lines lines[] = {walk.x, args.y};
  uint64_t bits = static_cast<uint64_t>(walk.along ? call.tokens * bytes : 0);
  for (const Lines& one : lines) {
    bits |= walk.along ? misaligned(by_token(one), bytes, 16) : misaligned(one, bytes, 16);
  }
  const int64_t pairs = (call.tokens / each + 1) / 2;
  const bool aligned = bits % 16 == 0;
  if (walk.along && aligned && walk.cut == kWhole && pairs > 0 &&
      pairs * call.channels * call.rows < int64_t{1} << 31) {
    kernel = call.width <= 4 ? PRECAST_BY_DTYPE(causal_conv1d, _rows) : PRECAST_BY_DTYPE(causal_conv1d, _rows_w8);
    walk.fast = division_by(pairs);
    walk.total = static_cast<unsigned>(pairs * call.channels * call.rows);
  } else if (!walk.along && aligned && call.channels % each == 0) {
    kernel = call.width <= 4 ? PRECAST_BY_DTYPE(causal_conv1d, _w4) : PRECAST_BY_DTYPE(causal_conv1d, _w8);
    const int64_t channels = call.width <= 4 ? each : kWideChannels;
    divide(walk, channels, best_chunk(call.channels / channels * call.rows, call.tokens, call.columns.device));
  } else {
    divide(walk, 1, walk.along ? kAlongChunk : kChunk);
  }
  LaunchShape shape = shape_of_units(walk.total);
  walk.early = shape.early = starts_early(shape, call.columns.device);
  void* arguments[] = {&args};
  launch(kernels, call.columns.device, kernel[call.columns.dtype], shape, arguments);
}

constexpr int64_t kForwardPs = 700;  // an element, for parallel_rows

void forward_cpu(const char* op, const Call& call, ForwardArgs& args) {
  const Segments segments = segments_of(op, args.walk);
  const ForwardTiles work = {tiles_of(call, args.walk, segments), args.y, args.final};
  const auto forward = PRECAST_AT_CPU_LEVEL(causal_conv1d, forward);
  parallel_rows(work.tiles.tiles(), work.tiles.channels() * call.rows * call.tokens * kForwardPs,
                [&](int64_t begin, int64_t end) { forward(work, begin, end); });
}

void update_cuda(const char*, const Call& call, UpdateArgs& args) {
  const int64_t bytes = call.bytes(), each = 16 / bytes;
  const uint64_t bits = misaligned(args.x, bytes, 16) | misaligned(args.y, bytes, 16);
  const Lines& state = args.state;
  const uint64_t of_states = misalignment(state.data, state.batch);
  const bool by_channel = state.token == bytes && state.channel == args.length * bytes && of_states == 0 &&
                          args.length <= 4 && args.length >= 3 && args.positions.data == nullptr;
  const bool vectors =
      bits == 0 && call.channels % each == 0 && call.width <= 4 && (by_channel || misaligned(state, bytes, 16) == 0);
  const ByDType kernel = !vectors           ? PRECAST_BY_DTYPE(causal_conv1d_update, _any)
                         : !by_channel      ? PRECAST_BY_DTYPE(causal_conv1d_update, _w4)
                         : args.length == 3 ? PRECAST_BY_DTYPE(causal_conv1d_update, _s3)
                                            : PRECAST_BY_DTYPE(causal_conv1d_update, _s4);
  const int64_t units = vectors ? call.channels / each : call.channels;
  PRECAST_CHECK(units * call.rows < int64_t{1} << 31, "causal_conv1d_update_: x has %lld channels in all; needed fewer",
                printable(units * call.rows));
  args.units = division_by(units);
  args.total = static_cast<unsigned>(units * call.rows);
  LaunchShape shape = shape_of_units(args.total);
  args.early = shape.early = starts_early(shape, call.columns.device);
  void* arguments[] = {&args};
  launch(kernels, call.columns.device, kernel[call.columns.dtype], shape, arguments);
}

void update_cpu(const char* op, const Call& call, UpdateArgs& args) {
  for (int64_t row = 0; row < call.rows && args.slots.data != nullptr; ++row) {
    const int64_t slot = number_at(args.slots, row);
    PRECAST_CHECK(
        slot < args.pool,
        "%s: state_indices[%lld] is %lld and there are %lld states; needed one of these, or a negative number "
        "to leave the sequence out",
        op, printable(row), printable(slot), printable(args.pool));
  }
  const UpdateTiles work = {args, call.rows, static_cast<int>(call.columns.dtype)};
  const auto update = PRECAST_AT_CPU_LEVEL(causal_conv1d, update);
  parallel_rows((call.channels + kTileChannels - 1) / kTileChannels,
                kTileChannels * call.rows * (call.tokens + args.length) * kForwardPs,
                [&](int64_t begin, int64_t end) { update(work, begin, end); });
}

// ---- the ops, the same for both devices ----

using Forward = void (*)(const char* op, const Call&, ForwardArgs&);

template <Forward forward>
TensorPair conv_op(const Tensor& x, const Tensor& weight, const Tensor* bias, const Tensor* initial,
                   const Tensor* index, const Tensor* starts, bool silu, bool final_state) {
  constexpr const char* kOp = "causal_conv1d";
  const Tensors tensors = {x, weight, bias};
  const Cuts cuts = {initial, index, starts};
  const Call call = check_call(kOp, tensors, false);
  check_cuts(kOp, call, x, cuts);
  TensorPair result(empty_in_order(x), final_state ? empty_states(call, cuts.sequences(call), x) : nothing_like(x));
  if (call.channels == 0 || call.rows == 0) return result;
  const Parameters parameters(tensors);
  ForwardArgs args = {walk_of(call, tensors, parameters, cuts, silu), lines_of(&result.first, call.bytes()),
                      lines_of(final_state ? &result.second : nullptr, call.bytes())};
  forward(kOp, call, args);
  return result;
}

using Update = void (*)(const char* op, const Call&, UpdateArgs&);

template <Update run>
Tensor update_op(const Tensor& x, const Tensor& state, const Tensor& weight, const Tensor* bias, const Tensor* slots,
                 const Tensor* positions, bool silu) {
  constexpr const char* kOp = "causal_conv1d_update_";
  const Tensors tensors = {x, weight, bias};
  const Call call = check_call(kOp, tensors, true);
  const Named written = {"state", state};
  check_kind(kOp, written, x);
  const int64_t* sizes = state.sizes();
  PRECAST_CHECK(state.dim() == 3 && sizes[1] == call.channels && sizes[2] >= call.width - 1 &&
                    (slots != nullptr || sizes[0] == call.rows),
                "%s: state has shape %s; needed (%s, %lld, %lld or more)", kOp, shape_of(state).text,
                slots != nullptr ? "slots" : "the batch of x", printable(call.channels), printable(call.width - 1));
  PRECAST_CHECK(is_free_of_overlap(state),
                "%s: state is written in place and has shape %s with strides %s; needed no two elements in one place",
                kOp, shape_of(state).text, ShapeText(state.strides(), state.dim()).text);
  const Named integers[] = {{"state_indices", slots != nullptr ? *slots : x},
                            {"positions", positions != nullptr ? *positions : x}};
  for (const Named& one : integers) {
    if (&one.tensor == &x) continue;
    check_integers(kOp, one, x);
    PRECAST_CHECK(one.tensor.dim() == 1 && one.tensor.sizes()[0] == call.rows,
                  "%s: %s has shape %s; needed (%lld,), a number for each sequence", kOp, one.name,
                  shape_of(one.tensor).text, printable(call.rows));
    check_apart(kOp, one, written);
  }
  check_apart(kOp, {"x", x}, written);
  check_apart(kOp, {"weight", weight}, written);
  if (bias != nullptr) check_apart(kOp, {"bias", *bias}, written);
  Tensor y = empty_in_order(x);
  if (call.channels == 0 || call.rows == 0 || call.tokens == 0) return y;
  const Parameters parameters(tensors);
  UpdateArgs args = {};
  args.x = lines_of(&x, call.bytes());
  args.y = lines_of(&y, call.bytes());
  if (call.tokens == 1) args.x.token = args.y.token = 0;  // never used, so it need not be a multiple of anything
  args.state = lines_of(&state, call.bytes());
  args.weight = parameters.weight;
  args.bias = parameters.bias;
  args.slots = integers_of(slots);
  args.positions = integers_of(positions);
  args.pool = sizes[0];
  args.length = sizes[2];
  args.channels = static_cast<unsigned>(call.channels);
  args.tokens = static_cast<int>(call.tokens);
  args.width = static_cast<int>(call.width);
  args.wide = call.columns.wide_columns;
  args.silu = silu;
  run(kOp, call, args);
  return y;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("causal_conv1d", "CPU", conv_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("causal_conv1d_update_", "CPU", update_op<update_cpu>),
    PRECAST_IMPLEMENTATION("causal_conv1d", "CUDA", conv_op<forward_cuda>),
    PRECAST_IMPLEMENTATION("causal_conv1d_update_", "CUDA", update_op<update_cuda>),
};
PRECAST_FAMILY(causal_conv1d, kImplementations, &kernels);

}  // namespace
}  // namespace precast::causal_conv1d
