// The ops of optimizer steps: create a plan, run steps with it, delete it; and one step without a plan.
#include <math.h>

#include "../host/numbered.h"
#include "plan.h"
#include "rules.h"

namespace precast::multi_tensor {
namespace {

using namespace rules;

Numbered<Plan>& plans() {
  static auto* const all = new Numbered<Plan>;  // never destroyed: a step may run while the process ends
  return *all;
}

void check_known(bool known, int64_t number) {
  PRECAST_CHECK(known, "multi_tensor_step_: there is no plan %lld", printable(number));
}

int64_t plan_op(const TensorList& params, const TensorList& grads, const TensorList& firsts, const TensorList& seconds,
                const TensorList& thirds, const TensorList& copies, const TensorList& idle, const Tensor& places) {
  const int64_t count = params.size(), dim = places.dim();
  PRECAST_CHECK(dim == 2 && places.sizes()[0] == count && places.sizes()[1] == 2 && places.is_contiguous() &&
                    places.device_type() == aoti_torch_device_type_cpu() &&
                    places.dtype_code() == aoti_torch_dtype_int32(),
                "multi_tensor_plan: layout has shape %s; (%lld, 2), int32, on the CPU is needed", shape_of(places).text,
                printable(count));
  const Lists lists = {"multi_tensor_plan",
                       {&params, &grads, &firsts, &seconds, &thirds, &copies},
                       {"params", "grads", "firsts", "seconds", "thirds", "copies"},
                       kAllButGrad,
                       "a gradient"};
  return plans().add(new Plan(lists, &idle, &places));
}

void forget_op(int64_t number, const Tensor&) { check_known(plans().forget(number), number); }

// ---- one step ----

constexpr int64_t kNumbers = 6;  // per group: lr, beta1, beta2, eps, weight_decay, extra

Group group_of(const double* numbers, const TensorList* rates, int64_t index) {
  const double beta1 = numbers[1], beta2 = numbers[2];
  Group group;
  group.device_lr = rates != nullptr && rates->size() > 0 ? static_cast<const float*>((*rates)[index].data()) : nullptr;
  group.lr = static_cast<float>(numbers[0]);
  group.one_minus_beta1 = static_cast<float>(1.0 - beta1);
  group.one_minus_beta2 = static_cast<float>(1.0 - beta2);
  group.log_beta1 = static_cast<float>(log1p(beta1 - 1.0));  // not log, whose newest symbol version needs glibc 2.29
  group.log_beta2 = static_cast<float>(log1p(beta2 - 1.0));
  group.eps = static_cast<float>(numbers[3]);
  group.weight_decay = static_cast<float>(numbers[4]);
  group.extra = static_cast<float>(numbers[5]);
  return group;
}

void launch_prepare(const Plan& plan, PrepareArgs& args, const double* numbers, int64_t groups,
                    const TensorList* rates) {
  const auto blocks = static_cast<uint32_t>((plan.count() + kThreads - 1) / kThreads);
  void* arguments[] = {&args};
  for (int64_t first = 0; first < groups; first += kGroups) {
    args.first_group = static_cast<int>(first);
    args.groups = static_cast<int>(groups - first < kGroups ? groups - first : kGroups);
    for (int i = 0; i < args.groups; ++i) args.group[i] = group_of(numbers + (first + i) * kNumbers, rates, first + i);
    launch(kernels, plan.device(), entry::multi_tensor_prepare, {blocks, 1, kThreads, 1, 0}, arguments);
  }
}

// `sums_given`: LAMB's sums of squares. The caller adds them over several devices between the two launches. If it is
// null, both launches run at once.
void launch_update(const Plan& plan, const Memory& memory, const float* grad_scale, int kind, int flags,
                   float* sums_given) {
  const TableLayout& at = plan.layout();
  UpdateArgs args = {};
  args.rows = reinterpret_cast<const Row*>(memory.table);
  args.first = reinterpret_cast<const uint32_t*>(memory.table + at.first);
  args.coefficients = reinterpret_cast<const Coefficients*>(memory.scratch);
  args.parts = reinterpret_cast<float*>(memory.scratch + at.parts);
  float* const sum_data = sums_given != nullptr ? sums_given : reinterpret_cast<float*>(memory.scratch + at.sums);
  args.sums = sum_data;
  args.grad_scale = grad_scale;
  args.count = static_cast<uint32_t>(plan.count());
  args.kind = kind;
  args.flags = flags;
  if (plan.blocks() == 0) return;
  void* arguments[] = {&args};
  const LaunchShape shape = {static_cast<uint32_t>(plan.blocks()), 1, kThreads, 1, 0};
  const bool adam = kind == Adam::kNumber, lamb = OfLamb::has(kind);
  int entry = lamb ? entry::multi_tensor_lamb : entry::multi_tensor_update;
  if (adam && plan.masters() && grad_scale == nullptr) entry = entry::multi_tensor_adam_masters;
  if (adam && plan.plain()) entry = entry::multi_tensor_adam;
  if (OneState::has(kind) && plan.plain()) entry = entry::multi_tensor_others;
  launch(kernels, plan.device(), entry, shape, arguments);
  if (kind != Lamb::kNumber) return;
  SumArgs sums = {args.first, args.parts, sum_data, nullptr, args.count, 2};
  void* sum_arguments[] = {&sums};
  launch(kernels, plan.device(), entry::multi_tensor_sum_each, {args.count, 2, 512, 1, 0}, sum_arguments);
  if (sums_given != nullptr) return;
  args.kind = LambApply::kNumber;
  launch(kernels, plan.device(), entry::multi_tensor_lamb, shape, arguments);
}

// Launches the whole step; `unscale` is what gradients are divided by in place, `rates` are learning rates on the
// device, and `sums` is as for launch_update(). All three may be null.
void launch_step(const Plan& plan, const Memory& memory, PrepareArgs& args, const float* unscale, const double* numbers,
                 int64_t groups, const TensorList* rates, float* sums) {
  args.rows = reinterpret_cast<const Row*>(memory.table);
  args.slots = reinterpret_cast<const uint32_t*>(memory.table + plan.layout().slots);
  args.coefficients = reinterpret_cast<Coefficients*>(memory.scratch);
  args.count = static_cast<uint32_t>(plan.count());
  if (args.kind != LambApply::kNumber) launch_prepare(plan, args, numbers, groups, rates);
  launch_update(plan, memory, unscale, args.kind, args.flags, sums);
}

// Checks that the plan has the tensors that this kind of update needs. The kernels do not check.
void check_members(const char* op, const Plan& plan, int64_t kind) {
  PRECAST_CHECK(OnGpu::has(kind), "%s: there is no update of kind %lld", op, printable(kind));
  for (int state = 0; state < OnGpu::least(kind); ++state) {
    PRECAST_CHECK(plan.has(static_cast<Member>(kFirst + state)),
                  "%s: an update of kind %lld needs states that were not given", op, printable(kind));
  }
}

enum Outcome : int64_t {
  kStale = 0,      // the plan does not match the tensors, and nothing was done
  kUncounted = 1,  // the step was done, but autograd must still be told about the change
  kDone = 2,
};

// The arguments of a step that do not depend on the plan, in the form that the kernels take.
struct StepNumbers {
  const Tensor &steps, &groups;
  const TensorList& rates;
  double max_norm;
  int64_t kind, flags;
  const Tensor* sums;  // LAMB's sums of squares over several devices; null: there is one device
};

// The caller's sums of squares for LAMB, two per tensor.
float* sums_for(const Plan& plan, const StepNumbers& numbers) {
  if (numbers.sums == nullptr) {
    PRECAST_CHECK(numbers.kind != LambApply::kNumber, "multi_tensor_step_: LAMB's second launch needs sums");
    return nullptr;
  }
  const Tensor& sums = *numbers.sums;
  PRECAST_CHECK(
      OfLamb::has(numbers.kind) && sums.numel() == 2 * plan.count() && sums.is_contiguous() &&
          sums.dtype_code() == float32_code() && sums.device_type() == numbers.steps.device_type() &&
          sums.device_index() == numbers.steps.device_index(),
      "multi_tensor_step_: sums is %s of shape %s on %s; two float32 for each of %lld tensors are needed, and "
      "an update of kind 4 or 5",
      dtype_name(sums.dtype_code()), shape_of(sums).text, device_of(sums).text, printable(plan.count()));
  return static_cast<float*>(sums.mutable_data());
}

int64_t step(Plan& plan, const TensorList& grads, PrepareArgs& args, const StepNumbers& numbers) {
  const bool unscales = args.grad_scale != nullptr;
  if (!plan.is_current(grads, unscales)) return kStale;
  if (plan.count() == 0) return kDone;
  check_members("multi_tensor_step_", plan, numbers.kind);
  float* const sums = sums_for(plan, numbers);
  const bool clips = numbers.max_norm > 0.0 && args.norm == nullptr && numbers.kind != LambApply::kNumber;
  const bool lamb = OfLamb::has(numbers.kind);
  const int64_t lamb_parts = lamb ? 2 * plan.blocks() : 0, norm_parts = clips ? plan.norm_blocks() : 0;
  const Memory memory = plan.memory(lamb_parts > norm_parts ? lamb_parts : norm_parts);
  const TableLayout& at = plan.layout();
  if (clips) {
    float* norm = reinterpret_cast<float*>(memory.scratch + at.total);
    launch_norm(plan, memory, norm, reinterpret_cast<float*>(memory.scratch + at.sums));
    args.norm = norm;
  }
  args.steps = static_cast<float*>(numbers.steps.mutable_data());
  args.max_norm = static_cast<float>(numbers.max_norm);
  args.factor = 1.0f;
  args.kind = static_cast<int>(numbers.kind);
  args.flags = static_cast<int>(numbers.flags);
  launch_step(plan, memory, args, args.grad_scale, static_cast<const double*>(numbers.groups.data()),
              numbers.groups.sizes()[0], &numbers.rates, sums);
  return grads.size() == 0 && plan.count_change(unscales) ? kDone : kUncounted;
}

int64_t step_op(int64_t number, const TensorList& grads, const Tensor& steps, const Tensor& groups,
                const TensorList& rates, const Tensor* found_inf, const Tensor* grad_scale, double max_norm,
                int64_t kind, int64_t flags, const Tensor* norm, const Tensor* sums) {
  constexpr const char* kOp = "multi_tensor_step_";
  PRECAST_CHECK(groups.dim() == 2 && groups.sizes()[1] == kNumbers && groups.is_contiguous() &&
                    groups.dtype_code() == float64_code() && groups.device_type() == aoti_torch_device_type_cpu(),
                "%s: groups has shape %s; (groups, %lld), float64, on the CPU is needed", kOp, shape_of(groups).text,
                printable(kNumbers));
  PRECAST_CHECK(rates.size() == 0 || rates.size() == groups.sizes()[0],
                "%s: %lld rates for %lld groups; one for each is needed", kOp, printable(rates.size()),
                printable(groups.sizes()[0]));
  for (int64_t i = 0; i < rates.size(); ++i) {
    scalar_beside(kOp, "a learning rate", &rates[i], steps);
    PRECAST_CHECK(rates[i].has_memory(), "%s: a learning rate has a storage of only %lld bytes", kOp,
                  printable(rates[i].storage_bytes()));
  }
  PrepareArgs args = {};
  args.found_inf = scalar_beside(kOp, "found_inf", found_inf, steps);
  args.grad_scale = scalar_beside(kOp, "grad_scale", grad_scale, steps);
  args.norm = scalar_beside(kOp, "norm", norm, steps);
  const StepNumbers numbers = {steps, groups, rates, max_norm, kind, flags, sums};
  int64_t outcome = kStale;
  check_known(plans().use(number, [&](Plan& plan) { outcome = step(plan, grads, args, numbers); }), number);
  return outcome;
}

// ---- one step without a plan ----

void update_op(const TensorList& params, const TensorList& grads, const TensorList& firsts, const TensorList& seconds,
               const TensorList& thirds, const TensorList& copies, const Tensor* found_inf, const Tensor* grad_scale,
               double step, double factor, double lr, double beta1, double beta2, double eps, double weight_decay,
               double extra, int64_t kind, int64_t flags) {
  constexpr const char* kOp = "multi_tensor_update_";
  PRECAST_CHECK(params.size() > 0, "%s: the list of params is empty; one tensor or more is needed", kOp);
  const Lists lists = {kOp,
                       {&params, &grads, &firsts, &seconds, &thirds, &copies},
                       {"params", "grads", "firsts", "seconds", "thirds", "copies"},
                       kAllButGrad,
                       "a gradient"};
  Plan plan(lists, nullptr, nullptr);
  PRECAST_CHECK(kind != LambApply::kNumber, "%s: there is no update of kind %lld", kOp, printable(kind));
  check_members(kOp, plan, kind);
  const bool averages = OnGpu::averages(kind);
  PRECAST_CHECK(!OnGpu::counts(kind) || step >= 1, "%s: step is %g; needed 1 or more", kOp, step);
  PRECAST_CHECK(!averages || (beta1 >= 0 && beta1 < 1), "%s: beta1 is %g; needed 0 or more, and less than 1", kOp,
                beta1);
  PRECAST_CHECK(!averages || (beta2 >= 0 && beta2 < 1), "%s: beta2 is %g; needed 0 or more, and less than 1", kOp,
                beta2);
  PrepareArgs args = {};
  args.found_inf = plan.number_beside(lists, "found_inf", found_inf, false);
  args.grad_scale = plan.number_beside(lists, "grad_scale", grad_scale, false);
  args.step = static_cast<float>(step);
  args.factor = static_cast<float>(factor);
  args.kind = static_cast<int>(kind);
  args.flags = static_cast<int>(flags);
  const double numbers[kNumbers] = {lr, beta1, beta2, eps, weight_decay, extra};
  launch_step(plan, plan.memory(kind == Lamb::kNumber ? 2 * plan.blocks() : 0), args, nullptr, numbers, 1, nullptr,
              nullptr);
}

}  // namespace

void multi_tensor_axpby(const TensorList&, const TensorList&, const TensorList&, double, double, const Tensor*,
                        const Tensor*);
TensorPair multi_tensor_l2norm(const TensorList&);

namespace {

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("multi_tensor_plan", "CUDA", plan_op),
    PRECAST_IMPLEMENTATION("multi_tensor_step_", "CUDA", step_op),
    PRECAST_IMPLEMENTATION("multi_tensor_forget", "CUDA", forget_op),
    PRECAST_IMPLEMENTATION("multi_tensor_update_", "CUDA", update_op),
    PRECAST_IMPLEMENTATION("multi_tensor_l2norm", "CUDA", multi_tensor_l2norm),
    PRECAST_IMPLEMENTATION("multi_tensor_axpby_", "CUDA", multi_tensor_axpby),
};
PRECAST_FAMILY(multi_tensor, kImplementations, &kernels);

}  // namespace
}  // namespace precast::multi_tensor
