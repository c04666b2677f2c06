// Bias and activation in one pass, and their gradients: checks, allocation, and the choice of a kernel.
#include <algorithm>
#include <cmath>

#include "../gpu/entry_points.h"
#include "entries.h"
#include "image.h"

namespace precast::image {
namespace {

// ---- which kernel serves which tensor ----
//
//   float64, curved activations, pointers or rows of columns that are no multiples of 16 bytes   any: elements
//   planes of another size, but of one vector or more                                             flat: vectors
//   everything else                                                                               vectors
//
// In planes (NCHW, or without a bias) a row has one channel, and a thread some units of a row. In columns
// (channels_last, (N, C)) a column has one, and a thread one unit in each of its block's rows. Planes that are no
// multiples of 16 bytes are flat: vectors are counted through all of them. Without a bias the tensor is one row, whose
// end is a launch of its own.

PRECAST_ENTRIES(BIAS_ACT_KERNELS)
// The maximum number of lines of partial sums in columns. More lines mean smaller blocks and a longer second sum.
constexpr int64_t kMostLines = 4096;

KernelFamily kernels = {"bias_act", kEntries, entry::kCount};

// Checked inputs of one call, forward or backward.
struct Call {
  const char* op;
  int number, bias_number;  // dtypes, as in args.h
  int32_t device;
  bool last;     // channels_last
  bool columns;  // the layout is columns
  int64_t rows, columns_count, channels;
  Activation activation;
  double alpha, gain, clamp;
  bool backward, of_output;
  const void *x, *saved, *bias;
  void* y;
  void* bias_grad;  // null: not wanted
  bool empty;       // there are no elements, so the sums are zero
};

Call check(const char* op, const Tensor& x, const Tensor* bias, int64_t dim, int64_t act, double alpha, double gain,
           double clamp) {
  Call call = {};
  call.op = op;
  call.number = check_number(op, x);
  call.device = x.device_index();
  PRECAST_CHECK(act >= kLinear && act <= kSwish, "%s: act is %lld; needed 0 to 8", op, printable(act));
  call.activation = static_cast<Activation>(act);
  call.alpha = act == kLinear ? 1.0 : act == kRelu ? 0.0 : alpha;
  call.gain = gain;
  call.clamp = clamp >= 0 ? clamp : NAN;
  if (bias == nullptr) return call;
  PRECAST_CHECK(dim >= 0 && dim < x.dim(), "%s: dim is %lld and x has shape %s; needed one of its dimensions", op,
                printable(dim), shape_of(x).text);
  const Named named = {"bias", *bias};
  call.bias_number = number_of(bias->dtype_code());
  if (call.number == kFloat64 || call.bias_number != kFloat32) {
    check_kind(op, named, x);
  } else {
    check_device(op, named, x);
  }
  PRECAST_CHECK(bias->dim() == 1 && bias->sizes()[0] == x.sizes()[dim],
                "%s: bias has shape %s; needed (%lld,), dimension %lld of x", op, shape_of(*bias).text,
                printable(x.sizes()[dim]), printable(dim));
  return call;
}

// The limit, rounded to the dtype of the result. NaN stays NaN.
double rounded(double clamp, int number) {
  if (number == kFloat64 || std::isnan(clamp)) return clamp;
  const double single = static_cast<double>(static_cast<float>(clamp));
  if (number == kFloat32 || single == 0 || std::isinf(single)) return single;
  const int digits = number == kFloat16 ? 11 : 8, least = number == kFloat16 ? -14 : -126;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(single), least) - digits + 1);
  const double nearest = std::nearbyint(single / unit) * unit;
  return number == kFloat16 && nearest > 65504.0 ? INFINITY : nearest;
}

// Chooses the layout: planes or columns. `biased`: the op depends on the channels.
void arrange(Call* call, const Tensor& x, int64_t dim, bool biased) {
  const int64_t elements = x.numel();
  call->channels = biased ? x.sizes()[dim] : 1;
  call->rows = 1;
  call->columns_count = elements;
  call->columns = false;
  if (!biased || elements == 0) return;
  int64_t inner = 1;
  for (int64_t i = dim + 1; i < x.dim(); ++i) inner *= x.sizes()[i];
  call->columns = call->last || inner == 1;
  call->columns_count = call->columns ? call->channels : inner;
  call->rows = elements / call->columns_count;
}

// ---- the GPU ----

uint32_t power_of_two(int64_t least) {
  uint32_t power = 1;
  while (power < least) power *= 2;
  return power;
}

// Sums `lines` lines of partial sums into the gradient of the bias.
void sum_lines(const Call& call, const void* parts, int64_t lines) {
  SumArgs args = {parts, static_cast<char*>(call.bias_grad), call.channels, lines, call.bias_number};
  void* arguments[] = {&args};
  const LaunchShape shape = {check_blocks(call.op, (call.channels + 31) / 32), 1, 32, 32};
  launch(kernels, call.device, call.number == kFloat64 ? entry::bias_act_sums_f64 : entry::bias_act_sums, shape,
         arguments);
}

int kernel_for(const Call& call, bool vectors, bool flat) {
  if (call.number == kFloat64) return call.backward ? entry::bias_act_backward_any_f64 : entry::bias_act_any_f64;
  if (!vectors) return call.backward ? entry::bias_act_backward_any : entry::bias_act_any;
  const ByDType kernel =
      flat            ? call.backward ? PRECAST_BY_DTYPE(bias_act_backward_flat, ) : PRECAST_BY_DTYPE(bias_act_flat, )
      : call.backward ? PRECAST_BY_DTYPE(bias_act_backward, )
                      : PRECAST_BY_DTYPE(bias_act, );
  return kernel[static_cast<DType>(call.number)];
}

// Launches the kernel over rows of `units` units, and the sum of `bias_grad` if it is wanted.
void launch_units(const Call& call, bool vectors, int64_t first, int64_t units, const Tensor& like, bool flat = false) {
  const int64_t bytes = bytes_of(call.number);
  FlatArgs all = {};
  BiasActArgs& args = all.planes;  // which the other kernels take alone
  args.x = static_cast<const char*>(call.x) + first * bytes;
  args.saved = call.saved == nullptr ? nullptr : static_cast<const char*>(call.saved) + first * bytes;
  args.bias = static_cast<const char*>(call.bias);
  args.y = static_cast<char*>(call.y) + first * bytes;
  args.rows = call.rows;
  args.columns = units;
  args.channels = call.channels;
  args.alpha = call.alpha;
  args.gain = call.gain;
  args.clamp = call.clamp;
  args.activation = call.activation;
  args.dtype = call.number;
  args.bias_dtype = call.bias_number;
  args.of_output = call.of_output ? 1 : 0;
  args.by_columns = call.columns ? 1 : 0;
  int64_t blocks, lines;
  uint32_t across, down;
  if (flat) {
    const int64_t each = 16 / bytes, block = kFlatThreads * kUnits * each;
    blocks = (call.rows * units + block - 1) / block;
    args.row_step = (units - 2) / block + 2;
    lines = call.rows / call.channels * args.row_step;
    all.sharing = static_cast<int>(power_of_two(std::min(units / each / 4, int64_t{32})));
    all.columns = division_by(units);
    all.channels = division_by(call.channels);
    across = kFlatThreads;
    down = 1;
  } else if (call.columns) {
    across = units < 32 ? power_of_two(units) : 32;
    down = kThreads / across;
    const int64_t least = down * kUnits, strips = (units + across - 1) / across;
    const int64_t steps = call.bias_grad == nullptr ? 1 : (call.rows + least * kMostLines - 1) / (least * kMostLines);
    args.row_step = least * steps;
    lines = (call.rows + args.row_step - 1) / args.row_step;
    blocks = strips * lines;
  } else {
    const int64_t quarter = units / 4;
    across = units <= 32           ? power_of_two(units)
             : quarter >= kThreads ? kThreads
                                   : power_of_two(quarter < 32 ? 32 : quarter);
    down = across < 64 ? 64 / across : 1;
    args.row_step = (units + across * kUnits - 1) / (across * kUnits);
    lines = call.rows / call.channels * args.row_step;
    blocks = (call.rows + down - 1) / down * args.row_step;
  }
  const int64_t sizes[] = {lines, call.channels};
  const int32_t code = call.number == kFloat64 ? float64_code() : float32_code();
  const Tensor parts = call.bias_grad == nullptr ? Tensor(nullptr) : empty(sizes, 2, code, like);
  args.parts = call.bias_grad == nullptr ? nullptr : parts.mutable_data();
  void* arguments[] = {&all};
  launch(kernels, call.device, kernel_for(call, vectors, flat), {check_blocks(call.op, blocks), 1, across, down},
         arguments);
  if (call.bias_grad != nullptr) sum_lines(call, args.parts, lines);
}

void run_cuda(const Call& call, const Tensor& like) {
  if (call.empty) return sum_lines(call, nullptr, 0);
  PRECAST_CHECK(call.columns || call.rows < (int64_t{1} << 31),
                "%s: %lld images and channels of %lld elements; needed fewer than 2^31 of them", call.op,
                printable(call.rows), printable(call.columns_count));
  PRECAST_CHECK(call.channels < (int64_t{1} << 31), "%s: %lld channels; needed fewer than 2^31", call.op,
                printable(call.channels));
  const int64_t bytes = bytes_of(call.number), each = 16 / bytes;
  const uint64_t misaligned = misalignment(call.x, 0) | misalignment(call.saved, 0) | misalignment(call.y, 0);
  const bool leaky = call.activation <= kLeakyRelu && (call.saved == nullptr || call.of_output);
  const bool vectors = misaligned == 0 && call.number != kFloat64 && leaky;
  if (vectors && call.rows == 1 && !call.columns && call.bias_grad == nullptr) {
    const int64_t whole = call.columns_count / each * each;
    if (whole > 0) launch_units(call, true, 0, whole / each, like);
    if (whole < call.columns_count) launch_units(call, false, whole, call.columns_count - whole, like);
    return;
  }
  const bool fits = vectors && call.columns_count % each == 0;
  constexpr int64_t kMostFlat = int64_t{1} << 30;  // the place in a plane and the elements of a block are below 2^31
  if (vectors && !fits && !call.columns && call.columns_count >= each && call.columns_count < kMostFlat) {
    return launch_units(call, true, 0, call.columns_count, like, true);
  }
  launch_units(call, fits, 0, fits ? call.columns_count / each : call.columns_count, like);
}

// ---- the CPU ----

void run_cpu(const Call& call, const Tensor& like) {
  const SumFunction sums = PRECAST_AT_CPU_LEVEL(image, sum_parts);
  if (call.empty) return sums(nullptr, 0, call.channels, 1, call.bias_grad, call.bias_number);
  BiasActWork work = {};
  work.x = call.x;
  work.saved = call.saved;
  work.bias = call.bias;
  work.y = call.y;
  work.rows = call.rows;
  work.columns = call.columns_count;
  work.channels = call.channels;
  work.alpha = call.alpha;
  work.gain = call.gain;
  work.clamp = call.clamp;
  work.activation = call.activation;
  work.dtype = call.number;
  work.bias_dtype = call.bias_number;
  work.backward = call.backward;
  work.of_output = call.of_output;
  // Chunks do not depend on the number of threads, so neither does the result.
  constexpr int64_t kChunks = 64;
  work.chunk_rows = call.rows > kChunks ? (call.rows + kChunks - 1) / kChunks : 1;
  const int64_t in_row = pieces_of(call.columns_count), total = call.rows * in_row;
  const int64_t chunks = (call.rows + work.chunk_rows - 1) / work.chunk_rows;
  const int64_t sizes[] = {call.columns ? chunks * call.columns_count : total};
  const Tensor parts = call.bias_grad == nullptr ? Tensor(nullptr) : empty(sizes, 1, float64_code(), like);
  work.parts = call.bias_grad == nullptr ? nullptr : static_cast<double*>(parts.mutable_data());
  if (call.columns) {
    const BiasActFunction function = PRECAST_AT_CPU_LEVEL(image, columns);
    parallel_for(0, chunks, grain_rows(work.chunk_rows * work.columns),
                 [&](int64_t begin, int64_t end) { function(work, begin, end); });
  } else {
    const BiasActFunction function = PRECAST_AT_CPU_LEVEL(image, planes);
    const int64_t piece = call.columns_count < kPiece ? call.columns_count : kPiece;
    parallel_for(0, total, grain_rows(piece), [&](int64_t begin, int64_t end) { function(work, begin, end); });
  }
  if (call.bias_grad == nullptr) return;
  const int64_t lines = call.columns ? chunks : call.rows / call.channels;
  sums(work.parts, lines, call.channels, call.columns ? 1 : in_row, call.bias_grad, call.bias_number);
}

// ---- the ops, the same for both devices ----

using Run = void (*)(const Call&, const Tensor& like);

template <Run run>
Tensor bias_act_op(const Tensor& x, const Tensor* bias, int64_t dim, int64_t act, double alpha, double gain,
                   double clamp) {
  Call call = check("bias_act", x, bias, dim, act, alpha, gain, clamp);
  call.last = is_channels_last(x) && (bias == nullptr || dim == 1);
  Tensor y = empty_ordered(x.sizes(), x.dim(), call.last, x);
  arrange(&call, x, dim, bias != nullptr);
  if (x.numel() == 0) return y;
  const Tensor from = ordered(x, call.last), biases = bias == nullptr ? Tensor(nullptr) : contiguous(*bias);
  call.x = from.data();
  call.bias = bias == nullptr ? nullptr : biases.data();
  call.y = y.mutable_data();
  run(call, x);
  return y;
}

template <Run run>
TensorPair bias_act_backward_op(const Tensor& grad, const Tensor* saved, const Tensor* bias, int64_t dim, int64_t act,
                                double alpha, double gain, double clamp, bool of_output, bool bias_grad) {
  constexpr const char* kOp = "bias_act_backward";
  const Tensor& like = saved == nullptr ? grad : *saved;
  Call call = check(kOp, like, bias, dim, act, alpha, gain, clamp);
  check_kind(kOp, {"grad", grad}, like, "saved");
  check_shape(kOp, {"grad", grad}, like, "saved");
  PRECAST_CHECK(saved != nullptr || (act == kLinear && !(clamp >= 0)),
                "%s: saved is None; needed a tensor unless act is 0 and nothing is clamped", kOp);
  PRECAST_CHECK(!of_output || (act <= kLeakyRelu && gain > 0 && call.alpha >= 0),
                "%s: of_output with act %lld, gain %g and alpha %g; needed act 0 to 2, gain > 0 and alpha >= 0", kOp,
                printable(act), gain, alpha);
  PRECAST_CHECK(!bias_grad || bias != nullptr, "%s: bias_grad without a bias", kOp);
  call.backward = true;
  call.of_output = of_output;
  if (of_output) call.clamp = rounded(call.clamp, call.number);
  const bool biased = bias_grad || (bias != nullptr && saved != nullptr && !of_output);
  call.last = is_channels_last(like) && (bias == nullptr || dim == 1);
  const int64_t length = bias_grad ? like.sizes()[dim] : 0;
  TensorPair result(empty_ordered(like.sizes(), like.dim(), call.last, like),
                    empty(&length, 1, bias == nullptr ? like.dtype_code() : bias->dtype_code(), like));
  arrange(&call, like, dim, biased);
  call.bias_grad = bias_grad && length > 0 ? result.second.mutable_data() : nullptr;
  call.empty = like.numel() == 0;
  if (call.empty && call.bias_grad == nullptr) return result;
  const Tensor slopes = ordered(grad, call.last);
  const Tensor values = saved == nullptr ? Tensor(nullptr) : ordered(*saved, call.last);
  const bool reads_bias = bias != nullptr && saved != nullptr && !of_output;
  const Tensor biases = reads_bias ? contiguous(*bias) : Tensor(nullptr);
  call.x = slopes.data();
  call.saved = saved == nullptr ? nullptr : values.data();
  call.bias = reads_bias ? biases.data() : nullptr;
  call.y = result.first.mutable_data();
  run(call, like);
  return result;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("bias_act", "CPU", bias_act_op<run_cpu>),
    PRECAST_IMPLEMENTATION("bias_act_backward", "CPU", bias_act_backward_op<run_cpu>),
    PRECAST_IMPLEMENTATION("bias_act", "CUDA", bias_act_op<run_cuda>),
    PRECAST_IMPLEMENTATION("bias_act_backward", "CUDA", bias_act_backward_op<run_cuda>),
};
PRECAST_FAMILY(bias_act, kImplementations, &kernels);

}  // namespace
}  // namespace precast::image
