#include "lists.h"

#include <math.h>

namespace precast::cpu_optim {
namespace {

// The least work that is worth another thread: 2^14 elements, about 10 us.
constexpr int64_t kGrainUnits = (int64_t{1} << 14) / kUnit;

// Copies bypass the caches if all of them together fit in no cache. Measured: 3-5 % less time from 8 MiB on, but up to
// 12 % more if a small copy is read next.
constexpr int64_t kStreamBytes = int64_t{1} << 25;

// One tensor of one slot, and the names for messages.
struct Member {
  const char* op;
  const Span& list;
  int64_t index;

  const Tensor& tensor() const { return list[index]; }
};

DType check_member(const Member& member, const Tensor& param, int64_t wanted) {
  const Tensor& tensor = member.tensor();
  PRECAST_CHECK(tensor.device_type() == aoti_torch_device_type_cpu(),
                "%s: %s[%lld] is on %s; all tensors must be on cpu", member.op, member.list.name,
                printable(member.index), device_of(tensor).text);
  const DType dtype = dtype_of(tensor.dtype_code());
  PRECAST_CHECK(dtype != DType::kOther, "%s: %s[%lld] is %s; float32, float16 or bfloat16 is needed", member.op,
                member.list.name, printable(member.index), dtype_name(tensor.dtype_code()));
  PRECAST_CHECK(tensor.numel() == wanted, "%s: %s[%lld] has shape %s, params[%lld] has %s; as many elements are needed",
                member.op, member.list.name, printable(member.index), shape_of(tensor).text, printable(member.index),
                shape_of(param).text);
  PRECAST_CHECK(tensor.has_memory(), "%s: %s[%lld] has shape %s, and a storage of only %lld bytes", member.op,
                member.list.name, printable(member.index), shape_of(tensor).text, printable(tensor.storage_bytes()));
  return dtype;
}

// Tensors that are written must have the parameter's memory layout, because they are updated as one flat range.
void check_layout(const Member& member, const Tensor& param, bool param_contiguous) {
  const bool fits = param_contiguous ? member.tensor().is_contiguous() : same_layout(member.tensor(), param);
  PRECAST_CHECK(fits,
                "%s: %s[%lld] and params[%lld] differ in memory layout; both must be contiguous, or have the same "
                "sizes and strides",
                member.op, member.list.name, printable(member.index), printable(member.index));
}

Stream written(const Tensor& tensor, DType dtype) {
  return {tensor.mutable_data(), static_cast<Type>(static_cast<int>(dtype))};
}

Stream read_only(const Tensor& tensor, DType dtype) {
  return {const_cast<void*>(tensor.data()), static_cast<Type>(static_cast<int>(dtype))};
}

bool lacks(const Lists& lists, int which, const Span& list, int64_t index, int64_t numel) {
  return list.size == 0 || (lists.may_lack[which] && numel > 0 && list[index].numel() == 0);
}

// All states must be float32, or all must have the parameter's dtype.
void add_states(const Lists& lists, int64_t index, const Tensor& param, DType dtype, bool contiguous_param,
                Slot& slot) {
  int there[kStates], count = 0;
  DType found[kStates];
  for (int i = 0; i < kStates; ++i) {
    const Span& list = lists.states[i];
    if (lacks(lists, i, list, index, slot.numel)) continue;
    const Member member = {lists.op, list, index};
    found[count] = check_member(member, param, slot.numel);
    check_layout(member, param, contiguous_param);
    slot.state[i] = written(list[index], found[count]);
    there[count++] = i;
  }
  for (int i = 0; i < count; ++i) {
    const Span &first = lists.states[there[0]], &other = lists.states[there[i > 0 ? i : count - 1]];
    PRECAST_CHECK(found[i] == found[0] && (found[0] == DType::kFloat32 || found[0] == dtype),
                  "%s: %s[%lld] is %s and %s[%lld] is %s with a %s param; all must be float32, or all of the param's "
                  "dtype",
                  lists.op, first.name, printable(index), dtype_name(first[index].dtype_code()), other.name,
                  printable(index), dtype_name(other[index].dtype_code()), dtype_name(param.dtype_code()));
  }
}

void add_gradient(const Lists& lists, int64_t index, const Tensor& param, DType dtype, bool contiguous_param,
                  Relaid& relaid, Slot& slot) {
  const Tensor& grad = lists.grads[index];
  const bool in_place = contiguous_param ? grad.is_contiguous() : same_layout(grad, param);
  PRECAST_CHECK(same_shape(grad, param) || (contiguous_param && !lists.same_shapes),
                "%s: grads[%lld] has shape %s, params[%lld] has %s%s; the same shape is needed", lists.op,
                printable(index), shape_of(grad).text, printable(index), shape_of(param).text,
                contiguous_param ? "" : " and is not contiguous");
  if (in_place) {
    slot.grad = read_only(grad, dtype);
  } else {
    slot.grad = read_only(relaid.add(contiguous_param ? contiguous(grad) : with_strides_of(grad, param)), dtype);
  }
}

Slot make_slot(const Lists& lists, int64_t index, Relaid& relaid) {
  const Tensor& param = lists.params[index];
  Slot slot = {};
  slot.numel = param.numel();
  slot.index = index;
  const DType dtype = check_member({lists.op, lists.params, index}, param, slot.numel);
  const DType grad_dtype = check_member({lists.op, lists.grads, index}, param, slot.numel);
  const bool contiguous_param = param.is_contiguous();
  PRECAST_CHECK(
      contiguous_param || is_dense(param),
      "%s: params[%lld] has gaps or overlaps in memory (shape %s); a contiguous or channels_last tensor is needed",
      lists.op, printable(index), shape_of(param).text);
  add_states(lists, index, param, dtype, contiguous_param, slot);
  slot.param = written(param, dtype);
  if (!lacks(lists, kStates, lists.copies, index, slot.numel)) {
    const Member copy = {lists.op, lists.copies, index};
    const DType copied = check_member(copy, param, slot.numel);
    PRECAST_CHECK(copied != DType::kFloat32, "%s: copies[%lld] is float32; float16 or bfloat16 is needed", lists.op,
                  printable(index));
    check_layout(copy, param, contiguous_param);
    slot.copy = written(copy.tensor(), copied);
  }
  add_gradient(lists, index, param, grad_dtype, contiguous_param, relaid, slot);
  return slot;
}

bool same(const Stream& a, const Stream& b) { return a.data == b.data && a.type == b.type; }

bool same_memory(const Slot& a, const Slot& b) {
  bool all = a.numel == b.numel && same(a.param, b.param) && same(a.copy, b.copy);
  for (int i = 0; i < kStates; ++i) all = all && same(a.state[i], b.state[i]);
  return all;
}

Range range_of(const Stream& stream, int64_t numel) {
  return precast::range_of(stream.data, numel, static_cast<DType>(static_cast<int>(stream.type)));
}

}  // namespace

void check_lengths(const Lists& lists) {
  const int64_t count = lists.params.size;
  const Span* others[] = {&lists.grads, &lists.states[0], &lists.states[1], &lists.states[2], &lists.copies};
  for (const Span* other : others) {
    if (other->size == 0 && other != &lists.grads) continue;
    PRECAST_CHECK(other->size == count, "%s: %lld params, but %lld %s; one for each param is needed", lists.op,
                  printable(count), printable(other->size), other->name);
  }
}

Total make_slots(const Lists& lists, Relaid& relaid, Slot* slots, int64_t before) {
  Total total = {};
  for (int64_t i = 0; i < lists.params.size; ++i) {
    Slot slot = make_slot(lists, i, relaid);
    if (slot.numel == 0) continue;
    slot.first_unit = total.units;
    total.units += units(slot.numel);
    if (slot.copy.data != nullptr) total.copy_bytes += slot.numel * 2;
    Slot& place = slots[total.slots++];
    total.moved = total.moved || total.slots > before || !same_memory(place, slot);
    place = slot;
  }
  total.moved = total.moved || total.slots != before;
  return total;
}

int64_t sort_ranges(const char* op, const Slot* slots, int64_t count, Range* ranges) {
  int64_t size = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Slot& slot = slots[i];
    ranges[size++] = range_of(slot.param, slot.numel);
    for (const Stream& state : slot.state) {
      if (state.data != nullptr) ranges[size++] = range_of(state, slot.numel);
    }
    if (slot.copy.data != nullptr) ranges[size++] = range_of(slot.copy, slot.numel);
  }
  PRECAST_CHECK(sort_apart(ranges, size), "%s: two of params, states and copies share memory; each must have its own",
                op);
  return size;
}

// Gradients may share memory with each other.
void check_gradients(const char* op, const Slot* slots, int64_t count, const Range* ranges, int64_t size) {
  for (int64_t i = 0; i < count; ++i) {
    PRECAST_CHECK(is_apart(range_of(slots[i].grad, slots[i].numel), ranges, size),
                  "%s: a gradient shares memory with a tensor that is written; it must have its own", op);
  }
}

Factor factor(double value) {
  float high = static_cast<float>(value);
  if (fabs(static_cast<double>(high)) > fabs(value)) high = nextafterf(high, 0.0f);
  float low = static_cast<float>(value - static_cast<double>(high));
  // Never zero if the high part is not: zero times an infinite parameter would be NaN, but value * infinity is not. It
  // is the smallest normal number. A thread that flushes subnormals would treat one as zero, and on Intel's processors
  // a subnormal costs some 200 cycles in every multiplication.
  if (low == 0.0f && high != 0.0f) low = copysignf(0x1p-126f, high);
  return {high, low};
}

void run(const Slot* slots, const Total& total, const Step* steps, int rule, float unscale) {
  const Work work = {slots, total.slots, steps, rule, total.copy_bytes >= kStreamBytes, unscale};
  const UpdateFunction update_units = PRECAST_AT_CPU_LEVEL(cpu_optim, update);
  parallel_for(0, total.units, kGrainUnits, [&](int64_t begin, int64_t end) { update_units(work, begin, end); });
}

}  // namespace precast::cpu_optim
