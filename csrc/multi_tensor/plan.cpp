// Creates plans, and compares them with the tensors before they are used.
#include "plan.h"

#include "../host/overlap.h"

namespace precast::multi_tensor {
namespace {

DType dtype_at(const Row& row, int shift) { return static_cast<DType>(row.types >> shift & 3); }

// Calls `each(range)` for the tensors of a row that are among `members`, a set of bits.
template <typename Each>
void each_range(const Row& row, unsigned members, Each each) {
  const char* const data[kMembers] = {row.param, row.grad, row.first, row.second, row.third, row.copy};
  constexpr int kShift[kMembers] = {0, 2, 4, 4, 4, 6};
  for (int member = 0; member < kMembers; ++member) {
    if ((members >> member & 1) == 0 || data[member] == nullptr) continue;
    each(range_of(data[member], row.n, dtype_at(row, kShift[member])));
  }
}

// What is written shares memory with nothing else, but that an element may be computed from the one in its place, where
// no state is kept. What is only read may share memory.
void check_overlap(const Lists& lists, const Row* rows, int64_t count) {
  Array<Range> written(count * kMembers);
  int64_t size = 0;
  for (int64_t i = 0; i < count; ++i) {
    each_range(rows[i], lists.written, [&](const Range& range) { written[size++] = range; });
  }
  PRECAST_CHECK(sort_apart(written.data(), size),
                "%s: two of the tensors that are written share memory; each must have its own", lists.op);
  for (int64_t i = 0; i < count; ++i) {
    const Range own = range_of(rows[i].param, rows[i].n, dtype_at(rows[i], 0));
    each_range(rows[i], ~lists.written, [&](const Range& range) {
      const bool in_place = lists.written == kOnlyParam && range.begin == own.begin && range.end == own.end;
      PRECAST_CHECK(in_place || is_apart(range, written.data(), size),
                    "%s: %s shares memory with a tensor that is written; it must have its own", lists.op, lists.read);
    });
  }
}

// Checks one tensor of a row, except for its memory layout.
int check_member(const Lists& lists, int member, int64_t index) {
  const Tensor& tensor = (*lists.member[member])[index];
  const Tensor& param = (*lists.member[kParam])[index];
  const Tensor& head = (*lists.member[kParam])[0];
  const char* name = lists.name[member];
  PRECAST_CHECK(tensor.device_type() == head.device_type() && tensor.device_index() == head.device_index(),
                "%s: %s[%lld] is on %s and %s[0] on %s; all tensors must be on one device", lists.op, name,
                printable(index), device_of(tensor).text, lists.name[kParam], device_of(head).text);
  const DType dtype = dtype_of(tensor.dtype_code());
  PRECAST_CHECK(dtype != DType::kOther, "%s: %s[%lld] is %s; float32, float16 or bfloat16 is needed", lists.op, name,
                printable(index), dtype_name(tensor.dtype_code()));
  PRECAST_CHECK(tensor.numel() == param.numel(),
                "%s: %s[%lld] has shape %s, %s[%lld] has %s; as many elements are needed", lists.op, name,
                printable(index), shape_of(tensor).text, lists.name[kParam], printable(index), shape_of(param).text);
  PRECAST_CHECK(tensor.has_memory(), "%s: %s[%lld] has shape %s, and a storage of only %lld bytes", lists.op, name,
                printable(index), shape_of(tensor).text, printable(tensor.storage_bytes()));
  const bool fits = param.is_contiguous() ? tensor.is_contiguous() : same_layout(tensor, param) && is_dense(param);
  PRECAST_CHECK(fits,
                "%s: %s[%lld] (shape %s) has gaps or overlaps in memory, or another memory layout than %s[%lld]; "
                "contiguous tensors are needed, or dense ones with the same sizes and strides",
                lists.op, name, printable(index), shape_of(tensor).text, lists.name[kParam], printable(index));
  return static_cast<int>(dtype);
}

constexpr int64_t kAhead = 4;

uint16_t aligned(const Row& row) {
  const auto odd = [](const char* data, DType dtype) {
    return (reinterpret_cast<uintptr_t>(data) & static_cast<uintptr_t>(4 * element_bytes(dtype) - 1)) != 0;
  };
  const DType state = dtype_at(row, 4);
  return odd(row.param, dtype_at(row, 0)) || odd(row.grad, dtype_at(row, 2)) || odd(row.first, state) ||
                 odd(row.second, state) || odd(row.third, state) || odd(row.copy, dtype_at(row, 6))
             ? 0
             : 1;
}

int64_t size_of(const TensorList* list) { return list == nullptr ? 0 : list->size(); }

}  // namespace

const float* scalar_beside(const char* op, const char* name, const Tensor* tensor, const Tensor& beside) {
  if (tensor == nullptr) return nullptr;
  PRECAST_CHECK(tensor->dtype_code() == float32_code() && tensor->numel() == 1 &&
                    tensor->device_type() == beside.device_type() && tensor->device_index() == beside.device_index(),
                "%s: %s is %s of shape %s on %s; one float32 on %s is needed", op, name,
                dtype_name(tensor->dtype_code()), shape_of(*tensor).text, device_of(*tensor).text,
                device_of(beside).text);
  return static_cast<const float*>(tensor->data());
}

Plan::Plan(const Lists& lists, const TensorList* idle, const Tensor* layout)
    : kinds_(layout != nullptr ? kind_layout(*layout) : nullptr),
      once_(layout == nullptr),
      rows_(lists.member[kParam]->size()),
      lent_(lists.member[kParam]->size() * kMembers),
      idle_(size_of(idle)),
      first_(lists.member[kParam]->size() + 1),
      norm_first_(lists.member[kParam]->size() + 1),
      slots_(lists.member[kParam]->size()),
      grad_dtype_(lists.member[kParam]->size()),
      contiguous_(lists.member[kParam]->size()),
      seen_(lists.member[kParam]->size()) {
  const TensorList& params = *lists.member[kParam];
  const int64_t listed = params.size();
  const auto* const places = layout != nullptr ? static_cast<const int32_t*>(layout->data()) : nullptr;
  for (int member = 0; member < kMembers; ++member) {
    const int64_t size = size_of(lists.member[member]);
    const bool needed = member == kParam || member == kGrad;
    PRECAST_CHECK(size == listed || (size == 0 && !needed), "%s: %lld %s, but %lld %s; one for each is needed",
                  lists.op, printable(listed), lists.name[kParam], printable(size), lists.name[member]);
  }
  if (listed > 0) {
    device_ = params[0].device_index();
    device_type_ = params[0].device_type();
  }
  uint64_t blocks = 0, norm_blocks = 0;
  plain_ = size_of(lists.member[kThird]) == 0 && size_of(lists.member[kCopy]) == 0;
  masters_ = size_of(lists.member[kThird]) == 0 && size_of(lists.member[kCopy]) > 0;
  for (int64_t i = 0; i < listed; ++i) {
    Row row = {};
    int types[kMembers] = {};
    char* data[kMembers] = {};
    for (int member = 0; member < kMembers; ++member) {
      if (size_of(lists.member[member]) == 0) continue;
      types[member] = check_member(lists, member, i);
      kinds_.learn((*lists.member[member])[i]);
      data[member] = const_cast<char*>(static_cast<const char*>((*lists.member[member])[i].data()));
    }
    const int state = size_of(lists.member[kFirst]) > 0 ? types[kFirst] : 0;
    for (int member : {kSecond, kThird}) {
      PRECAST_CHECK(size_of(lists.member[member]) == 0 || types[member] == state,
                    "%s: %s[%lld] and %s[%lld] are of two dtypes; one is needed", lists.op, lists.name[member],
                    printable(i), lists.name[kFirst], printable(i));
    }
    row = {data[kParam],
           data[kGrad],
           data[kFirst],
           data[kSecond],
           data[kThird],
           data[kCopy],
           params[i].numel(),
           static_cast<uint16_t>(types[kParam] | types[kGrad] << 2 | state << 4 | types[kCopy] << 6),
           0,
           0,
           0};
    row.aligned = aligned(row);
    if (places != nullptr) row.group = static_cast<uint16_t>(places[2 * i]);
    plain_ = plain_ && row.types == 0;
    masters_ = masters_ && types[kParam] == 0 && state == 0 && types[kGrad] != 0 && types[kCopy] == types[kGrad];
    rows_[count_] = row;
    slots_[count_] = places != nullptr ? static_cast<uint32_t>(places[2 * i + 1]) : 0;
    grad_dtype_[count_] = (*lists.member[kGrad])[i].dtype_code();
    contiguous_[count_] = params[i].is_contiguous();
    seen_[count_] = {};
    first_[count_] = static_cast<uint32_t>(blocks);
    norm_first_[count_] = static_cast<uint32_t>(norm_blocks);
    blocks += static_cast<uint64_t>((row.n + kChunk - 1) / kChunk);
    norm_blocks += static_cast<uint64_t>((row.n + kNormChunk - 1) / kNormChunk);
    PRECAST_CHECK(blocks < uint64_t{1} << 31, "%s: the tensors have more elements than one launch can number (10^12)",
                  lists.op);
    ++count_;
  }
  first_[count_] = static_cast<uint32_t>(blocks);
  norm_first_[count_] = static_cast<uint32_t>(norm_blocks);
  if (lists.written != 0) check_overlap(lists, rows_.data(), count_);

  memset(lent_.data(), 0, static_cast<size_t>(count_ * kMembers) * sizeof(Lent));
  reusable_ = kinds_.known();
  const auto lend = [&](Lent& lent, const Tensor& tensor) {
    lent = kinds_.lend(tensor);
    reusable_ = reusable_ && lent.object != nullptr;
  };
  for (int64_t row = 0; row < count_; ++row) {
    for (int member = 0; member < kMembers; ++member) {
      if (member == kGrad || size_of(lists.member[member]) == 0) continue;
      lend(lent_[row * kMembers + member], (*lists.member[member])[row]);
    }
  }
  for (; idle_count_ < size_of(idle); ++idle_count_) lend(idle_[idle_count_], (*idle)[idle_count_]);
}

Plan::~Plan() { release(); }

const float* Plan::number_beside(const Lists& lists, const char* name, const Tensor* tensor, bool written) const {
  const float* const number = scalar_beside(lists.op, name, tensor, (*lists.member[kParam])[0]);
  if (number == nullptr) return nullptr;
  const Range own = range_of(number, 1, DType::kFloat32);
  for (int64_t i = 0; i < count_; ++i) {
    each_range(rows_[i], written ? ~0U : lists.written, [&](const Range& range) {
      PRECAST_CHECK(is_apart(own, &range, 1), "%s: %s shares memory with one of the %s; it must have its own", lists.op,
                    name, written ? "tensors" : "tensors that are written");
    });
  }
  return number;
}

// True if a gradient is unchanged except for its address. A gradient that the plan found itself must be one that the
// dispatcher would pass on unchanged. An undefined gradient has another kind and another dtype.
bool Plan::take_gradient(int64_t index, AtenTensorHandle handle, bool found, bool writes) {
  const void* const impl = impl_of(handle);
  if (found && (kinds_.odd(impl) != 0 || !kinds_.is_no_subclass(impl))) return false;
  const Borrowed grad(handle);
  Row& row = rows_[index];
  if (grad->dtype_code() != grad_dtype_[index] || grad->numel() != row.n) return false;
  if (contiguous_[index] != 0 ? !grad->is_contiguous()
                              : !same_layout(*grad, *Borrowed(lent_[index * kMembers + kParam].handle()))) {
    return false;
  }
  // The first write to memory that torch shares between copies moves it.
  const char* data = static_cast<const char*>(writes ? grad->mutable_data() : grad->data());
  // This step's gradient can be at the same address as the last one, but in a shorter storage.
  if (!dense_has_memory(*grad, dtype_at(row, 2))) return false;
  if (__builtin_expect(data != row.grad, 0)) {
    if (grad->device_type() != device_type_ || grad->device_index() != device_) return false;
    if (data == nullptr && row.n != 0) return false;
    row.grad = data;
    row.aligned = aligned(row);
    moved_ = true;
  }
  return true;
}

// The model's parameter, which has the gradient: the copy if there is one.
const Lent& Plan::owner(int64_t index) const {
  const Lent* member = lent_.data() + index * kMembers;
  return member[member[kCopy].impl != nullptr ? kCopy : kParam];
}

bool Plan::count_change(bool grads) const {
  const VersionFunction bump_version = version_function();
  if (bump_version == nullptr) return false;
  for (int64_t i = 0; i < count_; ++i) {
    if (i + kAhead < count_) __builtin_prefetch(owner(i + kAhead).impl);
    bump_version(owner(i).handle());
    if (grads) bump_version(seen_[i].handle());
  }
  return true;
}

void Plan::check_gradients() const {
  Array<Range> ranges(count_);
  for (int64_t i = 0; i < count_; ++i) ranges[i] = range_of(rows_[i].grad, rows_[i].n, dtype_at(rows_[i], 2));
  PRECAST_CHECK(sort_apart(ranges.data(), count_),
                "multi_tensor_step_: two gradients share memory; each must have its own to be unscaled in place");
}

bool Plan::is_current(const TensorList& grads, bool writes) {
  const bool listed = grads.size() > 0;
  const GradientFunction gradient_of = gradient_function();
  if (listed ? grads.size() != count_ || (used_ && !reusable_) : gradient_of == nullptr || !reusable_) return false;
  const Kinds kinds = kinds_;
  for (int64_t i = 0; i < count_; ++i) {
    const Lent* member = lent_.data() + i * kMembers;
    // Thousands of tensors do not fit in the L1 cache, so prefetch the ones that are needed soon.
    if (i + kAhead < count_) {
      for (int k = 0; k < kMembers; ++k) kinds.prefetch(member[k + kAhead * kMembers]);
      if (!listed) prefetch_gradient(seen_[i + kAhead]);
    }
    const Row& row = rows_[i];
    uint64_t odd = 0;
    const char* expected[kMembers] = {row.param, nullptr, row.first, row.second, row.third, row.copy};
    for (int k = 0; k < kMembers; ++k) {
      if (member[k].impl == nullptr) continue;
      if (reusable_) {
        if (!kinds.still(member[k])) return false;
        odd |= kinds.odd(member[k].impl);
      }
      if (Borrowed(member[k].handle())->data() != expected[k]) return false;
    }
    const Borrowed param(member[kParam].handle());
    if (odd != 0) return false;
    if (param->numel() != row.n || param->is_contiguous() != (contiguous_[i] != 0)) return false;
    const AtenTensorHandle grad = listed ? grads[i].get() : gradient_of(owner(i).impl);
    if (!take_gradient(i, grad, !listed, writes)) return false;
    if (!listed) seen_[i] = {impl_of(grad), kinds.object_of(impl_of(grad))};
  }
  for (int64_t i = 0; i < idle_count_ && !listed; ++i) {
    if (!kinds.still(idle_[i]) || is_defined(gradient_of(idle_[i].impl))) return false;
  }
  if (writes) check_gradients();
  used_ = true;
  return true;
}

}  // namespace precast::multi_tensor
