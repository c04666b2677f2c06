// The optimize_ op: one step of any rule over all parameters of all groups, in one parallel region. Lists that come
// with a place to note a number are kept, and the next step names that number instead of handing over the lists: with a
// thousand small tensors, handing them over takes longer than updating them.
#include <math.h>

#include <memory>
#include <utility>

#include "../common/numbered.h"
#include "lists.h"

namespace precast::cpu_optim {
namespace {

constexpr const char* kOp = "optimize_";

// The columns of `numbers`; a row is for so many parameters, in their order.
enum Column { kLr, kBeta1, kBeta2, kEps, kWeightDecay, kExtra, kFlag, kMaximize, kParams, kColumns };
// kBeta1 is SGD's momentum; kExtra its dampening, or Adagrad's lr_decay; kFlag says decoupled, or nesterov.

// What one call works on, and what is kept from one to the next.
class Plan {
 public:
  Plan(const TensorList& params, const TensorList& first, const TensorList& second, const TensorList& third,
       const TensorList& steps, const TensorList& copies, Rule rule)
      : rule_(rule),
        borrowed_{{"params", nullptr, params.size()}, {"first", nullptr, first.size()},
                  {"second", nullptr, second.size()}, {"third", nullptr, third.size()},
                  {"steps", nullptr, steps.size()},   {"copies", nullptr, copies.size()}},
        slots_(params.size()),
        ranges_(params.size() * kMostRanges),
        steps_(params.size()),
        counts_(params.size()) {
    const TensorList* lists[] = {&params, &first, &second, &third, &steps, &copies};
    for (int i = 0; i < kLists; ++i) borrowed_[i].data = &(*lists[i])[0];
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (int64_t i = 0; i < owned_size_; ++i) (*owned_)[i].~Tensor();
  }

  // Takes references of its own in place of those of the op's arguments.
  void own() {
    int64_t size = 0;
    for (const Span& list : borrowed_) size += list.size;
    owned_ = std::make_unique<Array<Tensor>>(size);
    for (Span& list : borrowed_) {
      Tensor* const begin = owned_->data() + owned_size_;
      for (int64_t i = 0; i < list.size; ++i, ++owned_size_) new (begin + i) Tensor(another(list[i]));
      list.data = begin;
    }
  }

  void step(const TensorList& grads, const double* numbers, int64_t rows, double grad_scale);

 private:
  static constexpr int kLists = 6;

  void check_states() const;
  void make_steps(const double* numbers, int64_t rows, double grad_scale);
  double count_of(int64_t index) const;

  const Rule rule_;
  Span borrowed_[kLists];  // params, first, second, third, steps, copies
  Array<Slot> slots_;
  Array<Range> ranges_;
  Array<Step> steps_;
  Array<float*> counts_;  // where the parameters' steps are counted
  int64_t slot_count_ = 0, range_count_ = 0;
  std::unique_ptr<Array<Tensor>> owned_;
  int64_t owned_size_ = 0;
};

// Which lists a rule takes: first, second, third, steps. Adam may do without the third, SGD without the first.
constexpr bool kTaken[kRules][kStates + 1] = {
    {true, true, true, true}, {true, false, false, false}, {false, true, false, true}, {true, false, false, false}};

constexpr bool may_lack(Rule rule, int list) {
  return (rule == Rule::kAdam && list == 2) || (rule == Rule::kSgd && list == 0);
}

void Plan::check_states() const {
  const int64_t params = borrowed_[0].size;
  for (int i = 0; i < kStates + 1; ++i) {
    const Span& list = borrowed_[1 + i];
    const bool taken = kTaken[static_cast<int>(rule_)][i];
    PRECAST_CHECK(list.size == (taken ? params : 0) || (list.size == 0 && may_lack(rule_, i)),
                  "%s: %lld params, but %lld %s with rule %d; %s", kOp, printable(params), printable(list.size),
                  list.name, static_cast<int>(rule_), taken ? "one for each param is needed" : "none is needed");
  }
}

// The number of the step that is to come.
double Plan::count_of(int64_t index) const {
  const Tensor& tensor = borrowed_[4][index];
  PRECAST_CHECK(tensor.device_type() == aoti_torch_device_type_cpu() && tensor.dtype_code() == float32_code() &&
                    tensor.numel() == 1,
                "%s: steps[%lld] is no single float32 on the cpu", kOp, printable(index));
  const double count = static_cast<double>(*static_cast<const float*>(tensor.data())) + 1.0;
  PRECAST_CHECK(count >= 1.0 && count < 0x1p53 && count == static_cast<double>(static_cast<int64_t>(count)),
                "%s: steps[%lld] is %g; a whole number from 0 on is needed", kOp, printable(index), count - 1.0);
  return count;
}

// By squaring; the pow of libm would ask for a newer glibc.
double power(double base, double exponent) {
  double result = 1.0;
  for (uint64_t rest = static_cast<uint64_t>(exponent); rest != 0; rest /= 2, base *= base) {
    if (rest % 2 != 0) result *= base;
  }
  return result;
}

Step make_step(Rule rule, const double* row, double count, double grad_scale) {
  const double lr = row[kLr], beta1 = row[kBeta1], beta2 = row[kBeta2];
  const bool flag = row[kFlag] != 0.0;
  const bool decoupled = rule == Rule::kLion || (rule == Rule::kAdam && flag);
  Step step = {};
  step.grad_scale = static_cast<float>(row[kMaximize] != 0.0 ? -grad_scale : grad_scale);
  step.beta1 = factor(beta1);
  step.beta2 = factor(beta2);
  step.decay = factor(decoupled ? 1.0 - lr * row[kWeightDecay] : 1.0);
  step.rest1 = static_cast<float>(1.0 - (rule == Rule::kSgd ? row[kExtra] : beta1));
  step.rest2 = static_cast<float>(1.0 - beta2);
  step.l2 = decoupled ? 0.0f : static_cast<float>(row[kWeightDecay]);
  step.eps = static_cast<float>(row[kEps]);
  step.nesterov = flag;
  double size = lr;
  if (rule == Rule::kAdam) size /= 1.0 - power(beta1, count);
  if (rule == Rule::kAdam) step.root_scale = static_cast<float>(1.0 / ::sqrt(1.0 - power(beta2, count)));
  if (rule == Rule::kAdagrad) size /= 1.0 + (count - 1.0) * row[kExtra];
  step.minus_step_size = static_cast<float>(-size);
  return step;
}

// The numbers of every slot: the same ones for neighbours of one row and one count.
void Plan::make_steps(const double* numbers, int64_t rows, double grad_scale) {
  int64_t slot = 0, param = 0, made = -1, made_for = -1;
  double made_count = 0.0;
  for (int64_t row = 0; row < rows; ++row, numbers += kColumns) {
    const int64_t stop = param + static_cast<int64_t>(numbers[kParams]);
    PRECAST_CHECK(stop >= param && stop <= borrowed_[0].size, "%s: numbers are for %lld params; there are %lld", kOp,
                  printable(stop), printable(borrowed_[0].size));
    for (; param < stop; ++param) {
      const double count = borrowed_[4].size > 0 ? count_of(param) : 1.0;
      if (borrowed_[4].size > 0) counts_[param] = static_cast<float*>(borrowed_[4][param].mutable_data());
      if (slot == slot_count_ || slots_[slot].step != param) continue;  // no elements
      if (made_for != row || made_count != count) {
        steps_[++made] = make_step(rule_, numbers, count, grad_scale);
        made_for = row, made_count = count;
      }
      slots_[slot++].step = made;
    }
  }
  PRECAST_CHECK(param == borrowed_[0].size, "%s: numbers are for %lld params; there are %lld", kOp, printable(param),
                printable(borrowed_[0].size));
}

void Plan::step(const TensorList& grads, const double* numbers, int64_t rows, double grad_scale) {
  const Lists lists = {kOp,
                       borrowed_[0],
                       span("grads", grads),
                       {borrowed_[1], borrowed_[2], borrowed_[3]},
                       borrowed_[5],
                       true,
                       {may_lack(rule_, 0), may_lack(rule_, 1), may_lack(rule_, 2), true}};
  check_states();
  check_lengths(lists);
  Relaid relaid(grads.size());
  const int64_t before = slot_count_;
  slot_count_ = 0;  // until all checks are passed
  const Total total = make_slots(lists, relaid, slots_.data(), before);
  if (total.moved) range_count_ = sort_ranges(kOp, slots_.data(), total.slots, ranges_.data());
  check_gradients(kOp, slots_.data(), total.slots, ranges_.data(), range_count_);
  slot_count_ = total.slots;
  make_steps(numbers, rows, grad_scale);
  if (total.slots > 0) run(slots_.data(), total, steps_.data(), rule_);
  for (int64_t i = 0; i < borrowed_[4].size; ++i) *counts_[i] += 1.0f;
}

Numbered<Plan>& plans() {
  static auto* const all = new Numbered<Plan>;  // never destroyed: a step may run while the process ends
  return *all;
}

// The number in `plan`, which is null where it has no room for one.
int64_t* number_in(const Tensor& plan) {
  PRECAST_CHECK(plan.device_type() == aoti_torch_device_type_cpu() && plan.dtype_code() == aoti_torch_dtype_int64() &&
                    plan.numel() <= 1,
                "%s: plan is %s of shape %s; an int64 on the cpu is needed, or none", kOp,
                dtype_name(plan.dtype_code()), shape_of(plan).text);
  return plan.numel() == 0 ? nullptr : static_cast<int64_t*>(plan.mutable_data());
}

void optimize_cpu(const TensorList& params, const TensorList& grads, const TensorList& first, const TensorList& second,
                  const TensorList& third, const TensorList& steps, const TensorList& copies, const Tensor& plan,
                  const Tensor& numbers, double grad_scale, int64_t rule) {
  int64_t* const number = number_in(plan);
  PRECAST_CHECK(rule >= 0 && rule < kRules, "%s: rule is %lld; needed 0, 1, 2 or 3", kOp, printable(rule));
  PRECAST_CHECK(numbers.device_type() == aoti_torch_device_type_cpu() && numbers.dtype_code() == float64_code() &&
                    numbers.is_contiguous() && numbers.numel() % kColumns == 0,
                "%s: numbers is %s of shape %s; rows of %d float64 on the cpu are needed", kOp,
                dtype_name(numbers.dtype_code()), shape_of(numbers).text, static_cast<int>(kColumns));
  const double* const values = static_cast<const double*>(numbers.data());
  const int64_t rows = numbers.numel() / kColumns;
  if (params.size() == 0 && number != nullptr && *number != 0) {
    if (grads.size() == 0) {
      plans().forget(*number);
      *number = 0;
    } else {
      const bool known = plans().use(*number, [&](Plan& plan) { plan.step(grads, values, rows, grad_scale); });
      PRECAST_CHECK(known, "%s: there is no plan %lld; it was forgotten", kOp, printable(*number));
    }
    return;
  }
  if (params.size() == 0 && grads.size() == 0) return;  // nothing to update, to keep or to forget
  auto made =
      std::make_unique<Plan>(params, first, second, third, steps, copies, static_cast<Rule>(static_cast<int>(rule)));
  made->step(grads, values, rows, grad_scale);
  if (number == nullptr) return;
  made->own();
  if (*number != 0) plans().forget(*number);
  *number = plans().add(made.release());
}

constexpr Implementation kImplementations[] = {PRECAST_IMPLEMENTATION("optimize_", "CPU", optimize_cpu)};
PRECAST_FAMILY(cpu_optim, kImplementations, nullptr);

}  // namespace
}  // namespace precast::cpu_optim
