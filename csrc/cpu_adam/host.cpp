// The adam_ op: checks, the list of slots, one parallel region over all of them.
#include <math.h>
#include <stdlib.h>

#include <algorithm>
#include <new>
#include <utility>

#include "../common/cpu_level.h"
#include "../common/torch.h"
#include "cpu.h"

namespace precast::cpu_adam {
namespace {

// The least work that is worth another thread: 2^14 elements, about 10 us.
constexpr int64_t kGrainUnits = (int64_t{1} << 14) / kUnit;

// Copies are written past the caches when all of them together are of a size that no cache keeps. Measured: 3-5 % less
// time from 8 MiB on; up to 12 % more when a small copy is read next.
constexpr int64_t kStreamBytes = int64_t{1} << 25;

long long printable(int64_t number) { return static_cast<long long>(number); }

struct Lists {
  const TensorList &params, &grads, &exp_avgs, &exp_avg_sqs, &copies;
};

// An array that is freed with its scope. Elements are plain data and come uninitialised.
template <class T>
class Array {
 public:
  explicit Array(int64_t size) : data_(static_cast<T*>(malloc((static_cast<size_t>(size) + 1) * sizeof(T)))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { free(data_); }
  T* data() { return data_; }
  T& operator[](int64_t index) { return data_[index]; }

 private:
  T* data_;
};

void check_lengths(const Lists& lists) {
  const int64_t count = lists.params.size();
  const struct {
    const char* name;
    int64_t size;
  } others[] = {{"grads", lists.grads.size()},
                {"exp_avgs", lists.exp_avgs.size()},
                {"exp_avg_sqs", lists.exp_avg_sqs.size()},
                {"copies", lists.copies.size()}};
  for (const auto& other : others) {
    if (&other == &others[3] && other.size == 0) continue;
    PRECAST_CHECK(other.size == count, "adam_: %lld params, but %lld %s; one for each param is needed",
                  printable(count), printable(other.size), other.name);
  }
}

// One tensor of one slot, with the name that messages give it.
struct Member {
  const Tensor& tensor;
  const char* list;
  int64_t index;
};

DType check_member(const Member& member, const Tensor& param) {
  const Tensor& tensor = member.tensor;
  const int64_t numel = tensor.numel(), wanted = param.numel();
  PRECAST_CHECK(tensor.device_type() == aoti_torch_device_type_cpu(),
                "adam_: %s[%lld] is on %s; all tensors must be on cpu", member.list, printable(member.index),
                device_of(tensor).text);
  const DType dtype = dtype_of(tensor.dtype_code());
  PRECAST_CHECK(dtype != DType::kOther, "adam_: %s[%lld] is %s; float32, float16 or bfloat16 is needed", member.list,
                printable(member.index), dtype_name(tensor.dtype_code()));
  PRECAST_CHECK(numel == wanted, "adam_: %s[%lld] has shape %s, params[%lld] has %s; as many elements are needed",
                member.list, printable(member.index), shape_of(tensor).text, printable(member.index),
                shape_of(param).text);
  return dtype;
}

bool same_layout(const Tensor& a, const Tensor& b) {
  const int64_t dim = a.dim();
  if (b.dim() != dim) return false;
  const int64_t *a_sizes = a.sizes(), *b_sizes = b.sizes(), *a_strides = a.strides(), *b_strides = b.strides();
  for (int64_t i = 0; i < dim; ++i) {
    if (a_sizes[i] != b_sizes[i]) return false;
    if (a_sizes[i] > 1 && a_strides[i] != b_strides[i]) return false;
  }
  return true;
}

// True when the elements fill their range without gap or overlap, in whatever order of dimensions (channels_last).
bool is_dense(const Tensor& tensor) {
  const int64_t dim = tensor.dim(), *sizes = tensor.sizes(), *strides = tensor.strides();
  int64_t filled = 1;
  uint64_t taken = 0;
  for (int64_t step = 0; step < dim; ++step) {
    for (int64_t i = 0; i < dim && i < 64; ++i) {
      if (sizes[i] <= 1 || (taken >> i & 1) != 0 || strides[i] != filled) continue;
      filled *= sizes[i];
      taken |= uint64_t{1} << i;
      break;
    }
  }
  return filled == tensor.numel();
}

// What is written must lie element beside element as the parameter does: it is updated as one flat range.
void check_layout(const Member& member, const Tensor& param, bool param_contiguous) {
  const bool fits = param_contiguous ? member.tensor.is_contiguous() : same_layout(member.tensor, param);
  PRECAST_CHECK(fits,
                "adam_: %s[%lld] and params[%lld] differ in memory layout; what is updated must be contiguous, or have "
                "the same sizes and strides",
                member.list, printable(member.index), printable(member.index));
}

Stream written(const Tensor& tensor, DType dtype) {
  return {tensor.mutable_data(), static_cast<Type>(static_cast<int>(dtype))};
}

Stream read_only(const Tensor& tensor, DType dtype) {
  return {const_cast<void*>(tensor.data()), static_cast<Type>(static_cast<int>(dtype))};
}

// Gradients in another layout than their parameter, copied into it. Kept until the update is done.
class Relaid {
 public:
  explicit Relaid(int64_t capacity) : tensors_(capacity) {}
  ~Relaid() {
    for (int64_t i = 0; i < size_; ++i) tensors_[i].~Tensor();
  }
  const Tensor& add(Tensor&& tensor) { return *new (&tensors_[size_++]) Tensor(std::move(tensor)); }

 private:
  Array<Tensor> tensors_;
  int64_t size_ = 0;
};

Slot make_slot(const Lists& lists, int64_t index, Relaid& relaid) {
  const Tensor& param = lists.params[index];
  const Member members[] = {{param, "params", index},
                            {lists.grads[index], "grads", index},
                            {lists.exp_avgs[index], "exp_avgs", index},
                            {lists.exp_avg_sqs[index], "exp_avg_sqs", index}};
  DType dtypes[4];
  for (int i = 0; i < 4; ++i) dtypes[i] = check_member(members[i], param);
  PRECAST_CHECK(
      dtypes[2] == dtypes[3] && (dtypes[2] == DType::kFloat32 || dtypes[2] == dtypes[0]),
      "adam_: exp_avgs[%lld] is %s and exp_avg_sqs[%lld] is %s with a %s param; both must be float32, or both "
      "of the param's dtype",
      printable(index), dtype_name(members[2].tensor.dtype_code()), printable(index),
      dtype_name(members[3].tensor.dtype_code()), dtype_name(param.dtype_code()));

  const bool contiguous_param = param.is_contiguous();
  PRECAST_CHECK(
      contiguous_param || is_dense(param),
      "adam_: params[%lld] has gaps or overlaps in memory (shape %s); a contiguous or channels_last tensor is "
      "needed",
      printable(index), shape_of(param).text);
  check_layout(members[2], param, contiguous_param);
  check_layout(members[3], param, contiguous_param);

  Slot slot = {};
  slot.numel = param.numel();
  slot.param = written(param, dtypes[0]);
  slot.exp_avg = written(members[2].tensor, dtypes[2]);
  slot.exp_avg_sq = written(members[3].tensor, dtypes[3]);
  if (lists.copies.size() > 0) {
    const Member copy = {lists.copies[index], "copies", index};
    const DType dtype = check_member(copy, param);
    PRECAST_CHECK(dtype != DType::kFloat32, "adam_: copies[%lld] is float32; float16 or bfloat16 is needed",
                  printable(index));
    check_layout(copy, param, contiguous_param);
    slot.copy = written(copy.tensor, dtype);
  }
  const Tensor& grad = members[1].tensor;
  if (contiguous_param ? grad.is_contiguous() : same_layout(grad, param)) {
    slot.grad = read_only(grad, dtypes[1]);
  } else {
    PRECAST_CHECK(
        contiguous_param ||
            (grad.dim() == param.dim() && std::equal(grad.sizes(), grad.sizes() + grad.dim(), param.sizes())),
        "adam_: grads[%lld] has shape %s, params[%lld] has %s and is not contiguous; the same shape is needed",
        printable(index), shape_of(grad).text, printable(index), shape_of(param).text);
    slot.grad = read_only(relaid.add(contiguous_param ? contiguous(grad) : with_strides_of(grad, param)), dtypes[1]);
  }
  return slot;
}

struct Range {
  uintptr_t begin, end;
};

Range range_of(const Stream& stream, int64_t numel) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(stream.data);
  return {begin, begin + static_cast<uintptr_t>(numel) * (stream.type == Type::kFloat32 ? 4 : 2)};
}

// Two tensors that share memory would be updated twice, or by two threads at once. Gradients may share with each other.
void check_overlap(const Slot* slots, int64_t count) {
  Array<Range> ranges(count * 4);
  int64_t size = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Slot& slot = slots[i];
    ranges[size++] = range_of(slot.param, slot.numel);
    ranges[size++] = range_of(slot.exp_avg, slot.numel);
    ranges[size++] = range_of(slot.exp_avg_sq, slot.numel);
    if (slot.copy.data != nullptr) ranges[size++] = range_of(slot.copy, slot.numel);
  }
  const auto earlier = [](const Range& a, const Range& b) { return a.begin < b.begin; };
  std::sort(ranges.data(), ranges.data() + size, earlier);
  for (int64_t i = 1; i < size; ++i) {
    PRECAST_CHECK(ranges[i - 1].end <= ranges[i].begin,
                  "adam_: two of params, exp_avgs, exp_avg_sqs and copies share memory; each must have its own");
  }
  for (int64_t i = 0; i < count; ++i) {
    const Range grad = range_of(slots[i].grad, slots[i].numel);
    const Range* after = std::upper_bound(ranges.data(), ranges.data() + size, grad, earlier);
    const bool apart = (after == ranges.data() || after[-1].end <= grad.begin) &&
                       (after == ranges.data() + size || grad.end <= after->begin);
    PRECAST_CHECK(apart, "adam_: a gradient shares memory with a tensor that is written; it must have its own");
  }
}

Factor factor(double value) {
  float high = static_cast<float>(value);
  if (fabs(static_cast<double>(high)) > fabs(value)) high = nextafterf(high, 0.0f);
  float low = static_cast<float>(value - static_cast<double>(high));
  // Never zero beside a high part: zero times an infinite parameter would be NaN, where value * infinity is not.
  if (low == 0.0f && high != 0.0f) low = copysignf(1e-38f, high);
  return {high, low};
}

void adam_cpu(const TensorList& params, const TensorList& grads, const TensorList& exp_avgs,
              const TensorList& exp_avg_sqs, const TensorList& copies, double lr, double beta1, double beta2,
              double eps, double weight_decay, double bias_correction1, double bias_correction2, double grad_scale,
              bool decoupled, bool maximize) {
  const Lists lists = {params, grads, exp_avgs, exp_avg_sqs, copies};
  check_lengths(lists);
  Array<Slot> slots(params.size());
  Relaid relaid(params.size());
  int64_t count = 0, total_units = 0, copy_bytes = 0;
  for (int64_t i = 0; i < params.size(); ++i) {
    Slot slot = make_slot(lists, i, relaid);
    if (slot.numel == 0) continue;
    slot.first_unit = total_units;
    total_units += units(slot.numel);
    if (slot.copy.data != nullptr) copy_bytes += slot.numel * 2;
    slots[count++] = slot;
  }
  if (count == 0) return;
  check_overlap(slots.data(), count);

  Step step = {};
  step.grad_scale = static_cast<float>(maximize ? -grad_scale : grad_scale);
  step.beta1 = factor(beta1);
  step.beta2 = factor(beta2);
  step.decay = factor(decoupled ? 1.0 - lr * weight_decay : 1.0);
  step.one_minus_beta1 = static_cast<float>(1.0 - beta1);
  step.one_minus_beta2 = static_cast<float>(1.0 - beta2);
  step.l2 = decoupled ? 0.0f : static_cast<float>(weight_decay);
  step.minus_step_size = static_cast<float>(-lr / bias_correction1);
  step.root_scale = static_cast<float>(1.0 / ::sqrt(bias_correction2));
  step.eps = static_cast<float>(eps);
  step.stream_copies = copy_bytes >= kStreamBytes;

  const UpdateFunction update_units = PRECAST_AT_CPU_LEVEL(cpu_adam, update);
  const Slot* first = slots.data();
  parallel_for(0, total_units, kGrainUnits,
               [&](int64_t begin, int64_t end) { update_units(first, count, step, begin, end); });
}

constexpr Implementation kImplementations[] = {PRECAST_IMPLEMENTATION("adam_", "CPU", adam_cpu)};
PRECAST_FAMILY(cpu_adam, kImplementations, nullptr);

}  // namespace
}  // namespace precast::cpu_adam
