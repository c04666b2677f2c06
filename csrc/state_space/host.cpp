// A token of a state-space model: checks, allocation, and the choice of a kernel.
#include "../cpu/cpu_level.h"
#include "../gpu/launch.h"
#include "../gpu/row_launch.h"
#include "../host/apart.h"
#include "cpu.h"
#include "entries.h"

namespace precast::state_space {
namespace {

// Aligned rows are moved by 16 bytes of the state; `any`, by an element. Lanes of a warp share kRows rows of a head. On
// an H100, 512 bf16 states of 128 heads of 64 x 128 take 794 us, a copy of them 881; 64 take 103 and 91, one 3.8
// and 1.7.

PRECAST_ENTRIES(SELECTIVE_STATE_UPDATE_KERNELS)

KernelFamily kernels = {"selective_state_update", kEntries, entry::kCount};

constexpr const char* kOp = "selective_state_update_";

constexpr ByDType kWide = {kNoEntry, entry::state_update_f16_wide, entry::state_update_bf16_wide},
                  kWideAny = {kNoEntry, entry::state_update_f16_wide_any, entry::state_update_bf16_wide_any};

struct Call {
  int64_t batch, heads, rows, groups, size;
  DType dtype;
  bool wide;
  int32_t device;
};

void update_cuda(const Call& call, UpdateArgs& args) {
  const int64_t bytes = element_bytes(call.dtype), of_state = call.wide ? 4 : bytes, each = 16 / of_state;
  uint64_t bits = misalignment(args.state, args.state_slot | args.state_head | call.size * of_state);
  for (const Vectors& one : {args.b, args.c}) {
    bits |= (reinterpret_cast<uint64_t>(one.data) | static_cast<uint64_t>(one.sequence | one.head)) &
            static_cast<uint64_t>(each * bytes - 1);
  }
  const bool vectors = bits == 0;
  const ByDType kernel = call.wide
                             ? (vectors ? kWide : kWideAny)
                             : (vectors ? PRECAST_BY_DTYPE(state_update, ) : PRECAST_BY_DTYPE(state_update, _any));
  args.lanes = lanes_for(vectors ? call.size / each : call.size, 1);
  if (args.lanes > 32) args.lanes = 32;
  const int64_t units = (call.rows + kRows - 1) / kRows, total = units * call.heads * call.batch;
  PRECAST_CHECK(total * args.lanes < int64_t{1} << 31, "%s: x has %lld rows in all; needed fewer", kOp,
                printable(total * kRows));
  args.units = division_by(units);
  args.total = static_cast<unsigned>(total);
  LaunchShape shape = {static_cast<uint32_t>((total * args.lanes + kThreads - 1) / kThreads), 1, kThreads};
  args.early = shape.early = starts_early(shape, call.device);
  void* arguments[] = {&args};
  launch(kernels, call.device, kernel[call.dtype], shape, arguments);
}

void update_cpu(const Call& call, UpdateArgs& args) {
  for (int64_t i = 0; i < call.batch && args.slots != nullptr; ++i) {
    const int64_t place = i * args.slot_stride;
    const int64_t slot = args.long_slots ? reinterpret_cast<const int64_t*>(args.slots)[place]
                                         : reinterpret_cast<const int32_t*>(args.slots)[place];
    PRECAST_CHECK(
        slot < args.pool,
        "%s: state_indices[%lld] is %lld and there are %lld states; needed one of these, or a negative number "
        "to leave the sequence out",
        kOp, printable(i), printable(slot), printable(args.pool));
  }
  const UpdateRows work = {args, static_cast<int>(call.dtype), call.wide};
  const auto update = PRECAST_AT_CPU_LEVEL(state_space, update);
  parallel_rows(call.batch * call.heads, call.rows * call.size * 200,
                [&](int64_t begin, int64_t end) { update(work, begin, end); });
}

// Numbers by head, or by sequence and head.
Numbers numbers_of(const Named& one, const Tensor& x, int64_t batch, int64_t heads) {
  const Tensor& tensor = one.tensor;
  const bool wide = tensor.dtype_code() == float32_code();
  if (!wide) check_kind(kOp, one, x);
  check_device(kOp, one, x);
  const int64_t dim = tensor.dim(), *sizes = tensor.sizes();
  const bool each = batch >= 0;
  PRECAST_CHECK(dim == (each ? 2 : 1) && sizes[dim - 1] == heads && (!each || sizes[0] == batch),
                "%s: %s has shape %s; needed %s, a number for each head", kOp, one.name, shape_of(tensor).text,
                each ? "(batch, heads)" : "(heads,)");
  return {static_cast<const char*>(tensor.data()), each ? tensor.strides()[0] : 0, tensor.strides()[dim - 1], wide, 0};
}

Vectors vectors_of(const Tensor* tensor, int64_t bytes) {
  if (tensor == nullptr) return {};
  return {static_cast<char*>(const_cast<void*>(tensor->data())), tensor->strides()[0] * bytes,
          tensor->strides()[1] * bytes};
}

// The tensor, or a copy whose last dimension is contiguous.
Tensor readable(const Tensor& tensor) { return last_is_contiguous(tensor) ? another(tensor) : contiguous(tensor); }

Call check_call(const Tensor& state, const Tensor& x, const Tensor& b, const Tensor& c, const Tensor* z) {
  Call call = {};
  call.dtype = dtype_of(x.dtype_code());
  call.device = x.device_index();
  PRECAST_CHECK(call.dtype != DType::kOther, "%s: x is %s; needed float32, float16 or bfloat16", kOp,
                dtype_name(x.dtype_code()));
  call.wide = state.dtype_code() == float32_code() && call.dtype != DType::kFloat32;
  if (!call.wide) check_kind(kOp, {"state", state}, x);
  check_device(kOp, {"state", state}, x);
  const int64_t *sizes = x.sizes(), *of_b = b.sizes(), *of_state = state.sizes();
  const bool fits = x.dim() == 3 && b.dim() == 3 && state.dim() == 4 && of_b[0] == sizes[0] && of_b[1] >= 1 &&
                    sizes[1] % of_b[1] == 0 && of_state[1] == sizes[1] && of_state[2] == sizes[2] &&
                    of_state[3] == of_b[2];
  PRECAST_CHECK(fits,
                "%s: state has shape %s, x %s and b %s; needed (slots, heads, head_dim, state_size), (batch, heads, "
                "head_dim) and (batch, groups, state_size), of which groups divide heads",
                kOp, shape_of(state).text, shape_of(x).text, shape_of(b).text);
  for (const Named& one : {Named{"b", b}, {"c", c}, {"z", z != nullptr ? *z : x}}) check_kind(kOp, one, x);
  PRECAST_CHECK(same_shape(c, b), "%s: c has shape %s; needed %s, as b", kOp, shape_of(c).text, shape_of(b).text);
  if (z != nullptr) check_shape(kOp, {"z", *z}, x);
  call.batch = sizes[0];
  call.heads = sizes[1];
  call.rows = sizes[2];
  call.groups = of_b[1];
  call.size = of_b[2];
  return call;
}

void check_written(const Tensor& state) {
  const int64_t *sizes = state.sizes(), *strides = state.strides();
  PRECAST_CHECK(
      is_free_of_overlap(state) && last_is_contiguous(state) && (sizes[2] <= 1 || strides[2] == sizes[3]),
      "%s: state is written in place and has shape %s with strides %s; needed contiguous last two dimensions, "
      "and no two elements in one place",
      kOp, shape_of(state).text, ShapeText(strides, state.dim()).text);
}

using Update = void (*)(const Call&, UpdateArgs&);

template <Update run>
Tensor update_op(const Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b,
                 const Tensor& c, const Tensor* d, const Tensor* z, const Tensor* dt_bias, const Tensor* slots,
                 bool softplus) {
  const Call call = check_call(state, x, b, c, z);
  UpdateArgs args = {};
  args.dt = numbers_of({"dt", dt}, x, call.batch, call.heads);
  args.decay = numbers_of({"a", a}, x, -1, call.heads);
  if (d != nullptr) args.skip = numbers_of({"d", *d}, x, -1, call.heads);
  if (dt_bias != nullptr) args.dt_bias = numbers_of({"dt_bias", *dt_bias}, x, -1, call.heads);
  if (slots != nullptr) {
    check_integers(kOp, {"state_indices", *slots}, x);
    args.slots = static_cast<const char*>(slots->data());
    args.slot_stride = slots->dim() == 1 ? slots->strides()[0] : 0;
    args.long_slots = slots->dtype_code() == aoti_torch_dtype_int64();
  }
  PRECAST_CHECK(
      slots != nullptr ? slots->dim() == 1 && slots->sizes()[0] == call.batch : state.sizes()[0] == call.batch,
      "%s: there are %lld states and %lld sequences; needed state_indices, a number for each sequence", kOp,
      printable(state.sizes()[0]), printable(call.batch));
  check_written(state);
  const auto or_x = [&](const Tensor* one) -> const Tensor& { return one != nullptr ? *one : x; };
  const Named read[] = {{"x", x},
                        {"dt", dt},
                        {"a", a},
                        {"b", b},
                        {"c", c},
                        {"d", or_x(d)},
                        {"z", or_x(z)},
                        {"dt_bias", or_x(dt_bias)},
                        {"state_indices", or_x(slots)}};
  for (const Named& one : read) check_apart(kOp, one, {"state", state});
  Tensor y = empty_contiguous_like(x);
  if (call.batch * call.heads * call.rows == 0) return y;
  const int64_t bytes = element_bytes(call.dtype), of_state = call.wide ? 4 : bytes;
  const Tensor inputs[] = {readable(x), readable(b), readable(c), z != nullptr ? readable(*z) : Tensor(nullptr)};
  args.state = static_cast<char*>(state.mutable_data());
  args.state_slot = state.strides()[0] * of_state;
  args.state_head = state.strides()[1] * of_state;
  args.x = vectors_of(&inputs[0], bytes);
  args.y = vectors_of(&y, bytes);
  args.z = vectors_of(z != nullptr ? &inputs[3] : nullptr, bytes);
  args.b = vectors_of(&inputs[1], bytes);
  args.c = vectors_of(&inputs[2], bytes);
  args.pool = state.sizes()[0];
  args.heads = division_by(call.heads);
  args.group = static_cast<int>(call.heads / call.groups);
  args.rows = static_cast<int>(call.rows);
  args.size = static_cast<int>(call.size);
  args.softplus = softplus;
  run(call, args);
  return y;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("selective_state_update_", "CPU", update_op<update_cpu>),
    PRECAST_IMPLEMENTATION("selective_state_update_", "CUDA", update_op<update_cuda>),
};
PRECAST_FAMILY(selective_state_update, kImplementations, &kernels);

}  // namespace
}  // namespace precast::state_space
