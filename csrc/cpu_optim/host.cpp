// The optimize_ op: one step of any rule over all parameters of all groups, in one parallel region. If the caller
// provides a tensor for a number, the lists are kept, and the next step passes that number instead of the lists. With a
// thousand small tensors, passing them takes longer than updating them. optimize_again_ takes only that number; it uses
// the gradients that the parameters have.
#include <math.h>

#include <atomic>
#include <memory>
#include <utility>

#include "../host/kind.h"
#include "../host/numbered.h"
#include "../multi_tensor/rules.h"
#include "lists.h"

namespace precast::cpu_optim {
namespace {

constexpr const char* kOp = "optimize_";

// The columns of `numbers`. A row applies to kCount consecutive parameters.
enum Column { kLr, kBeta1, kBeta2, kEps, kWeightDecay, kExtra, kFlags, kCount, kColumns };
// kBeta1 is SGD's dampening; kExtra is its momentum, or Adagrad's lr_decay; kFlags are those of rules.h.

// The least number of slots that is worth another thread. Inspecting one takes 0.1 to 0.5 us.
constexpr int64_t kGrainSlots = 128;

// The tensors and buffers of a call, which can be kept for the next call.
class Plan {
 public:
  Plan(const TensorList& params, const TensorList& first, const TensorList& second, const TensorList& third,
       const TensorList& steps, const TensorList& copies, const Tensor& plain, int rule)
      : rule_(rule),
        kinds_(kind_layout(plain)),
        borrowed_{{"params", nullptr, params.size()}, {"first", nullptr, first.size()},
                  {"second", nullptr, second.size()}, {"third", nullptr, third.size()},
                  {"steps", nullptr, steps.size()},   {"copies", nullptr, copies.size()}},
        slots_(params.size()),
        ranges_(params.size() * kMostRanges),
        steps_(params.size()),
        counts_(params.size()),
        seen_(params.size()) {
    const TensorList* lists[] = {&params, &first, &second, &third, &steps, &copies};
    for (int i = 0; i < kLists; ++i) borrowed_[i].data = &(*lists[i])[0];
    for (int64_t i = 0; i < params.size(); ++i) seen_[i] = {};
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Replaces the borrowed references to the op's arguments, which end with the op, with those that the caller keeps.
  void keep() {
    for (const Span& list : borrowed_) width_ += list.size > 0 ? 1 : 0;
    lent_size_ = width_ * borrowed_[kParams].size;
    lent_ = std::make_unique<Array<Lent>>(lent_size_);
    tensors_ = std::make_unique<Array<Tensor>>(lent_size_);
    int64_t column = 0;
    for (Span& list : borrowed_) {
      if (list.size == 0) continue;
      Tensor* const begin = tensors_->data() + column * list.size;
      for (int64_t i = 0; i < list.size; ++i) {
        Lent& lent = (*lent_)[i * width_ + column];
        lent = kinds_.lend(list[i]);
        reusable_ = reusable_ && lent.object != nullptr;
        kinds_.learn(list[i]);
        new (begin + i) Tensor(lent.handle());  // never destroyed: the reference is not ours
      }
      list.data = begin;
      ++column;
    }
  }

  // Checks everything before anything is written.
  void step(const TensorList& grads, const double* numbers, int64_t rows, double grad_scale);

  // A step with the gradients that the parameters have; it tells autograd about the change. Only for a plan that keeps
  // its lists. Returns false and does nothing unless all tensors are unchanged and in the same place. Gradients may
  // have moved. With `unscale` not 0 it multiplies them by that, in place; raises if two of them share memory.
  bool step_again(const double* numbers, int64_t rows, double grad_scale, float unscale);

 private:
  enum List : int { kParams, kFirst, kSecond, kThird, kSteps, kCopies, kLists };

  void check_states() const;
  void check_kinds() const;
  void check_apart() const;
  void find_counts();
  bool is_current(bool writes);
  bool slots_are_current(GradientFunction gradient_of, bool writes, int64_t begin, int64_t end);
  bool take_gradient(AtenTensorHandle handle, const int32_t* codes, bool writes, Slot& slot) const;
  void make_steps(const double* numbers, int64_t rows, double grad_scale);
  void update(const double* numbers, int64_t rows, double grad_scale, float unscale = 0.0f);
  double count_of(int64_t index) const;

  const int rule_;
  Kinds kinds_;
  Span borrowed_[kLists];
  Array<Slot> slots_;
  Array<Range> ranges_;
  Array<Step> steps_;
  Array<float*> counts_;  // the parameters' step counters
  Array<Lent> seen_;      // gradients
  int64_t slot_count_ = 0, range_count_ = 0;
  Total total_ = {};
  std::unique_ptr<Array<Lent>> lent_;  // the tensors of all lists: `width_` of each parameter, side by side
  std::unique_ptr<Array<Tensor>> tensors_;
  int64_t width_ = 0, lent_size_ = 0;
  bool reusable_ = kinds_.known();  // every tensor is known by its Python object
};

// The lists of a rule are its states, and the steps behind them.
constexpr bool takes(int rule, int list) {
  return list < kStates ? list < rules::OnCpu::most(rule) : rules::OnCpu::counts(rule);
}

constexpr bool may_lack(int rule, int list) {
  return list >= rules::OnCpu::least(rule) && list < rules::OnCpu::most(rule);
}

void Plan::check_states() const {
  const int64_t params = borrowed_[kParams].size;
  for (int i = 0; i < kStates + 1; ++i) {
    const Span& list = borrowed_[1 + i];
    const bool taken = takes(rule_, i);
    PRECAST_CHECK(list.size == (taken ? params : 0) || (list.size == 0 && may_lack(rule_, i)),
                  "%s: %lld params, but %lld %s with rule %d; %s", kOp, printable(params), printable(list.size),
                  list.name, rule_, taken ? "one for each param is needed" : "none is needed");
  }
}

// A tensor that was exchanged may be freed. One whose data was exchanged may be one that the dispatcher would not pass
// on unchanged. Checks for both.
void Plan::check_kinds() const {
  for (int64_t i = 0; i < lent_size_; ++i) {
    const Lent& lent = (*lent_)[i];
    PRECAST_CHECK(reusable_ && kinds_.still(lent) && kinds_.odd(lent.impl) == 0,
                  "%s: a tensor of the plan is not the one it was", kOp);
  }
}

// Gradients that are written must have memory of their own.
void Plan::check_apart() const {
  Array<Range> ranges(slot_count_);
  for (int64_t i = 0; i < slot_count_; ++i) {
    const Stream& grad = slots_[i].grad;
    ranges[i] = range_of(grad.data, slots_[i].numel, static_cast<DType>(static_cast<int>(grad.type)));
  }
  PRECAST_CHECK(sort_apart(ranges.data(), slot_count_), "%s: two gradients share memory", kOp);
}

void Plan::find_counts() {
  for (int64_t i = 0; i < borrowed_[kSteps].size; ++i) {
    const Tensor& tensor = borrowed_[kSteps][i];
    PRECAST_CHECK(tensor.device_type() == aoti_torch_device_type_cpu() && tensor.dtype_code() == float32_code() &&
                      tensor.numel() == 1,
                  "%s: steps[%lld] is no single float32 on the cpu", kOp, printable(i));
    PRECAST_CHECK(tensor.has_memory(), "%s: steps[%lld] has a storage of only %lld bytes", kOp, printable(i),
                  printable(tensor.storage_bytes()));
    counts_[i] = static_cast<float*>(tensor.mutable_data());
  }
}

// The number of the coming step.
double Plan::count_of(int64_t index) const {
  const double count = static_cast<double>(*counts_[index]) + 1.0;
  PRECAST_CHECK(count >= 1.0 && count < 0x1p53 && count == static_cast<double>(static_cast<int64_t>(count)),
                "%s: steps[%lld] is %g; a whole number from 0 on is needed", kOp, printable(index), count - 1.0);
  return count;
}

// By squaring, because libm's pow would require a newer glibc.
double power(double base, double exponent) {
  double result = 1.0;
  for (uint64_t rest = static_cast<uint64_t>(exponent); rest != 0; rest /= 2, base *= base) {
    if (rest % 2 != 0) result *= base;
  }
  return result;
}

Step make_step(int rule, const double* row, double count, double grad_scale) {
  const double lr = row[kLr], beta1 = row[kBeta1], beta2 = row[kBeta2];
  const int flags = static_cast<int>(row[kFlags]);
  const bool decoupled = (flags & rules::kDecoupled) != 0;
  Step step = {};
  step.flags = flags;
  step.grad_scale = static_cast<float>(flags & rules::kMaximize ? -grad_scale : grad_scale);
  step.beta1 = factor(beta1);
  step.beta2 = factor(beta2);
  step.momentum = factor(row[kExtra]);
  step.decay = factor(decoupled ? 1.0 - lr * row[kWeightDecay] : 1.0);
  step.rest1 = static_cast<float>(1.0 - beta1);
  step.rest2 = static_cast<float>(1.0 - beta2);
  step.l2 = decoupled ? 0.0f : static_cast<float>(row[kWeightDecay]);
  step.eps = static_cast<float>(row[kEps]);
  double size = lr;
  step.root_scale = 1.0f;
  if (rules::OnCpu::corrects(rule) && (flags & rules::kUncorrected) == 0) {
    size /= 1.0 - power(beta1, count);
    step.root_scale = static_cast<float>(1.0 / ::sqrt(1.0 - power(beta2, count)));
  }
  if (rules::OnCpu::slows(rule)) size /= 1.0 + (count - 1.0) * row[kExtra];
  step.minus_step_size = static_cast<float>(-size);
  return step;
}

// Computes the numbers of every slot. Adjacent slots of the same row and step count share them.
void Plan::make_steps(const double* numbers, int64_t rows, double grad_scale) {
  int64_t slot = 0, param = 0, made = -1, made_for = -1;
  double made_count = 0.0, count = 1.0;
  float counted = __builtin_nanf("");  // the step count behind `count`; adjacent parameters mostly share it
  for (int64_t row = 0; row < rows; ++row, numbers += kColumns) {
    const int64_t stop = param + static_cast<int64_t>(numbers[kCount]);
    PRECAST_CHECK(stop >= param && stop <= borrowed_[kParams].size, "%s: numbers are for %lld params; there are %lld",
                  kOp, printable(stop), printable(borrowed_[kParams].size));
    for (; param < stop; ++param) {
      if (borrowed_[kSteps].size > 0 && *counts_[param] != counted) {
        count = count_of(param);
        counted = *counts_[param];
      }
      if (slot == slot_count_ || slots_[slot].index != param) continue;  // no elements
      if (made_for != row || made_count != count) {
        steps_[++made] = make_step(rule_, numbers, count, grad_scale);
        made_for = row, made_count = count;
      }
      slots_[slot++].step = made;
    }
  }
  PRECAST_CHECK(param == borrowed_[kParams].size, "%s: numbers are for %lld params; there are %lld", kOp,
                printable(param), printable(borrowed_[kParams].size));
}

void Plan::update(const double* numbers, int64_t rows, double grad_scale, float unscale) {
  make_steps(numbers, rows, grad_scale);
  if (slot_count_ > 0) run(slots_.data(), total_, steps_.data(), rule_, unscale);
  for (int64_t i = 0; i < borrowed_[kSteps].size; ++i) *counts_[i] += 1.0f;
}

void Plan::step(const TensorList& grads, const double* numbers, int64_t rows, double grad_scale) {
  const Lists lists = {kOp,
                       borrowed_[kParams],
                       span("grads", grads),
                       {borrowed_[kFirst], borrowed_[kSecond], borrowed_[kThird]},
                       borrowed_[kCopies],
                       true,
                       {may_lack(rule_, 0), may_lack(rule_, 1), may_lack(rule_, 2), true}};
  check_states();
  check_kinds();
  check_lengths(lists);
  Relaid relaid(grads.size());
  const int64_t before = slot_count_;
  slot_count_ = 0;  // until all checks have passed
  total_ = make_slots(lists, relaid, slots_.data(), before);
  if (total_.moved) range_count_ = sort_ranges(kOp, slots_.data(), total_.slots, ranges_.data());
  check_gradients(kOp, slots_.data(), total_.slots, ranges_.data(), range_count_);
  find_counts();
  slot_count_ = total_.slots;
  for (int64_t i = 0; i < grads.size(); ++i) kinds_.learn(grads[i]);
  update(numbers, rows, grad_scale);
}

// True if a gradient matches that of the slot, and the dispatcher would pass it on unchanged. Its new address is then
// taken over. An undefined gradient has another kind. `codes`: torch's numbers of the dtypes.
bool Plan::take_gradient(AtenTensorHandle handle, const int32_t* codes, bool writes, Slot& slot) const {
  const void* const impl = impl_of(handle);
  if (kinds_.odd(impl) != 0 || !kinds_.is_no_subclass(impl)) return false;
  const Borrowed borrowed(handle);
  const Tensor& grad = *borrowed;
  if (grad.dtype_code() != codes[static_cast<int>(slot.grad.type)]) return false;
  if (grad.numel() != slot.numel || !grad.is_contiguous()) return false;
  const DType dtype = static_cast<DType>(static_cast<int>(slot.grad.type));
  const void* const data = writes ? grad.mutable_data() : grad.data();  // copies may share memory until a write
  // This step's gradient can be at the same address as the last one, but in a shorter storage.
  if (!dense_has_memory(grad, dtype)) return false;
  if (data == slot.grad.data) return true;
  if (grad.device_type() != aoti_torch_device_type_cpu() || data == nullptr) return false;
  const Range range = range_of(data, slot.numel, dtype);
  if (!is_apart(range, ranges_.data(), range_count_)) return false;
  slot.grad.data = const_cast<void*>(data);
  return true;
}

bool Plan::slots_are_current(GradientFunction gradient_of, bool writes, int64_t begin, int64_t end) {
  constexpr int64_t kAhead = 4;
  const Kinds kinds = kinds_;
  const int32_t codes[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16()};
  for (int64_t i = begin; i < end; ++i) {
    const Lent* lent = lent_->data() + i * width_;
    // Thousands of tensors do not fit in the L1 cache, so prefetch the ones that are needed soon.
    if (i + kAhead < end) {
      for (int64_t k = 0; k < width_; ++k) kinds.prefetch(lent[kAhead * width_ + k]);
      prefetch_gradient(seen_[i + kAhead]);
    }
    Slot& slot = slots_[i];
    uint64_t odd = 0;
    const void* const expected[kLists] = {slot.param.data,    slot.state[0].data, slot.state[1].data,
                                          slot.state[2].data, counts_[i],         slot.copy.data};
    const Borrowed param(lent->handle());
    for (int k = 0; k < kLists; ++k) {
      if (borrowed_[k].size == 0) continue;
      if (!kinds.still(*lent)) return false;
      odd |= kinds.odd(lent->impl);
      if (Borrowed(lent->handle())->data() != expected[k]) return false;
      ++lent;
    }
    if (odd != 0) return false;
    if (param->numel() != slot.numel || !param->is_contiguous()) return false;
    const AtenTensorHandle grad = gradient_of(impl_of(param->get()));
    if (!take_gradient(grad, codes, writes, slot)) return false;
    seen_[i] = {impl_of(grad), kinds.object_of(impl_of(grad))};
  }
  return true;
}

bool Plan::is_current(bool writes) {
  const GradientFunction gradient_of = gradient_function();
  if (gradient_of == nullptr || version_function() == nullptr || !reusable_) return false;
  if (lent_ == nullptr || slot_count_ != borrowed_[kParams].size) return false;  // parameters without elements
  std::atomic<bool> current{true};
  parallel_for(0, slot_count_, kGrainSlots, [&](int64_t begin, int64_t end) {
    if (!slots_are_current(gradient_of, writes, begin, end)) current.store(false, std::memory_order_relaxed);
  });
  return current;
}

bool Plan::step_again(const double* numbers, int64_t rows, double grad_scale, float unscale) {
  const bool writes = unscale != 0.0f;
  if (!is_current(writes)) return false;
  if (rows == 0) return true;  // the caller only compares
  if (writes) check_apart();
  update(numbers, rows, grad_scale, unscale);
  const VersionFunction bump_version = version_function();
  parallel_for(0, lent_size_, kLists * kGrainSlots, [&](int64_t begin, int64_t end) {
    constexpr int64_t kAhead = 8;  // large parameters have driven the tensors from the caches
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch((*lent_)[i + kAhead].impl);
      bump_version((*lent_)[i].handle());
    }
  });
  for (int64_t i = 0; writes && i < slot_count_; ++i) bump_version(seen_[i].handle());
  return true;
}

Numbered<Plan>& plans() {
  static auto* const all = new Numbered<Plan>;  // never destroyed: a step may run while the process ends
  return *all;
}

// The number in `plan`. Null if the tensor has no room for one.
int64_t* number_in(const Tensor& plan) {
  PRECAST_CHECK(plan.device_type() == aoti_torch_device_type_cpu() && plan.dtype_code() == aoti_torch_dtype_int64() &&
                    plan.numel() <= 1,
                "%s: plan is %s of shape %s; an int64 on the cpu is needed, or none", kOp,
                dtype_name(plan.dtype_code()), shape_of(plan).text);
  return plan.numel() == 0 ? nullptr : static_cast<int64_t*>(plan.mutable_data());
}

struct Numbers {
  const double* values;
  int64_t rows;
};

Numbers numbers_in(const Tensor& numbers) {
  PRECAST_CHECK(numbers.device_type() == aoti_torch_device_type_cpu() && numbers.dtype_code() == float64_code() &&
                    numbers.is_contiguous() && numbers.numel() % kColumns == 0,
                "%s: numbers is %s of shape %s; rows of %d float64 on the cpu are needed", kOp,
                dtype_name(numbers.dtype_code()), shape_of(numbers).text, static_cast<int>(kColumns));
  return {static_cast<const double*>(numbers.data()), numbers.numel() / kColumns};
}

void check_known(bool known, int64_t number) {
  PRECAST_CHECK(known, "%s: there is no plan %lld; it was forgotten", kOp, printable(number));
}

bool optimize_again(const Tensor& plan, const Tensor& numbers, double grad_scale, double unscale) {
  const int64_t* const number = number_in(plan);
  PRECAST_CHECK(number != nullptr && *number != 0, "%s: a step without tensors, and without a plan", kOp);
  const Numbers numbered = numbers_in(numbers);
  bool done = false;
  const auto step = [&](Plan& known) {
    done = known.step_again(numbered.values, numbered.rows, grad_scale, static_cast<float>(unscale));
  };
  check_known(plans().use(*number, step), *number);
  return done;
}

void optimize_cpu(const TensorList& params, const TensorList& grads, const TensorList& first, const TensorList& second,
                  const TensorList& third, const TensorList& steps, const TensorList& copies, const Tensor& plan,
                  const Tensor& numbers, double grad_scale, int64_t rule) {
  int64_t* const number = number_in(plan);
  PRECAST_CHECK(rules::OnCpu::has(rule), "%s: there is no rule %lld", kOp, printable(rule));
  const Numbers numbered = numbers_in(numbers);
  if (params.size() == 0 && number != nullptr && *number != 0) {
    if (grads.size() == 0) {
      plans().forget(*number);
      *number = 0;
    } else {
      const auto step = [&](Plan& known) { known.step(grads, numbered.values, numbered.rows, grad_scale); };
      check_known(plans().use(*number, step), *number);
    }
    return;
  }
  if (params.size() == 0 && grads.size() == 0) return;  // nothing to update, keep or forget
  auto made = std::make_unique<Plan>(params, first, second, third, steps, copies, plan, static_cast<int>(rule));
  made->step(grads, numbered.values, numbered.rows, grad_scale);
  if (number == nullptr) return;
  made->keep();
  if (*number != 0) plans().forget(*number);
  *number = plans().add(made.release());
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("optimize_", "CPU", optimize_cpu),
    PRECAST_IMPLEMENTATION("optimize_again_", "CPU", optimize_again),
};
PRECAST_FAMILY(cpu_optim, kImplementations, nullptr);

}  // namespace
}  // namespace precast::cpu_optim
