// The adam_ op: one Adam step over the slots of all tensors, with bias corrections from the caller.
#include <math.h>

#include "../cpu_optim/lists.h"
#include "../host/torch.h"
#include "../multi_tensor/rules.h"

namespace precast::cpu_adam {
namespace {

using namespace precast::cpu_optim;

void adam_cpu(const TensorList& params, const TensorList& grads, const TensorList& exp_avgs,
              const TensorList& exp_avg_sqs, const TensorList& copies, double lr, double beta1, double beta2,
              double eps, double weight_decay, double bias_correction1, double bias_correction2, double grad_scale,
              bool decoupled, bool maximize) {
  const Lists lists = {"adam_",
                       span("params", params),
                       span("grads", grads),
                       {span("exp_avgs", exp_avgs), span("exp_avg_sqs", exp_avg_sqs), {"", nullptr, 0}},
                       span("copies", copies),
                       false,
                       {}};
  PRECAST_CHECK(exp_avgs.size() == params.size() && exp_avg_sqs.size() == params.size(),
                "adam_: %lld params, but %lld %s; one for each param is needed", printable(params.size()),
                printable(exp_avgs.size() == params.size() ? exp_avg_sqs.size() : exp_avgs.size()),
                exp_avgs.size() == params.size() ? "exp_avg_sqs" : "exp_avgs");
  check_lengths(lists);
  PRECAST_CHECK(bias_correction1 > 0 && bias_correction2 > 0,
                "adam_: bias_correction1 is %g and bias_correction2 %g; needed numbers above 0", bias_correction1,
                bias_correction2);
  const int64_t count = params.size();
  Array<Slot> slots(count);
  Relaid relaid(count);
  const Total total = make_slots(lists, relaid, slots.data(), 0);
  if (total.slots == 0) return;
  Array<Range> ranges(total.slots * kMostRanges);
  const int64_t written = sort_ranges(lists.op, slots.data(), total.slots, ranges.data());
  check_gradients(lists.op, slots.data(), total.slots, ranges.data(), written);
  for (int64_t i = 0; i < total.slots; ++i) slots[i].step = 0;

  Step step = {};
  step.grad_scale = static_cast<float>(maximize ? -grad_scale : grad_scale);
  step.beta1 = factor(beta1);
  step.beta2 = factor(beta2);
  step.decay = factor(decoupled ? 1.0 - lr * weight_decay : 1.0);
  step.rest1 = static_cast<float>(1.0 - beta1);
  step.rest2 = static_cast<float>(1.0 - beta2);
  step.l2 = decoupled ? 0.0f : static_cast<float>(weight_decay);
  step.minus_step_size = static_cast<float>(-lr / bias_correction1);
  step.root_scale = static_cast<float>(1.0 / ::sqrt(bias_correction2));
  step.eps = static_cast<float>(eps);
  run(slots.data(), total, &step, rules::Adam::kNumber);
}

constexpr Implementation kImplementations[] = {PRECAST_IMPLEMENTATION("adam_", "CPU", adam_cpu)};
PRECAST_FAMILY(cpu_adam, kImplementations, nullptr);

}  // namespace
}  // namespace precast::cpu_adam
