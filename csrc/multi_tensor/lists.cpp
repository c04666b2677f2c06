// The ops over plain lists of tensors: norms, scaling and sums. Each call makes its own plan.
#include "plan.h"

namespace precast::multi_tensor {

TensorPair multi_tensor_l2norm(const TensorList& tensors) {
  PRECAST_CHECK(tensors.size() > 0, "multi_tensor_l2norm: the list of tensors is empty; one tensor or more is needed");
  const Lists lists = {"multi_tensor_l2norm", {&tensors, &tensors}, {"tensors", "tensors"}, 0, ""};
  Plan plan(lists, nullptr, nullptr);
  const int64_t count = tensors.size();
  Tensor total = empty(nullptr, 0, float32_code(), tensors[0]), sums = empty(&count, 1, float32_code(), tensors[0]);
  launch_norm(plan, plan.memory(plan.norm_blocks()), static_cast<float*>(total.mutable_data()),
              static_cast<float*>(sums.mutable_data()));
  return {static_cast<Tensor&&>(total), static_cast<Tensor&&>(sums)};
}

void multi_tensor_axpby(const TensorList& outs, const TensorList& xs, const TensorList& ys, double a, double b,
                        const Tensor* factor, const Tensor* found_inf) {
  PRECAST_CHECK(outs.size() > 0, "multi_tensor_axpby_: the list of outs is empty; one tensor or more is needed");
  const Lists lists = {"multi_tensor_axpby_", {&outs, &xs, &ys}, {"outs", "xs", "ys"}, kOnlyParam, "an x or y"};
  Plan plan(lists, nullptr, nullptr);
  if (plan.blocks() == 0) return;
  const float* const scale = plan.number_beside(lists, "factor", factor, false);
  const float* const found = plan.number_beside(lists, "found_inf", found_inf, true);
  PRECAST_CHECK(scale == nullptr || found == nullptr || scale != found,
                "%s: factor and found_inf share memory; each must have its own", lists.op);
  const Memory memory = plan.memory(0);
  AxpbyArgs args = {};
  args.rows = reinterpret_cast<const Row*>(memory.table);
  args.first = reinterpret_cast<const uint32_t*>(memory.table + plan.layout().first);
  args.factor = scale;
  args.found_inf = found_inf == nullptr ? nullptr : static_cast<float*>(found_inf->mutable_data());
  args.a = static_cast<float>(a);
  args.b = static_cast<float>(b);
  args.count = static_cast<uint32_t>(plan.count());
  void* arguments[] = {&args};
  launch(kernels, plan.device(), entry::multi_tensor_axpby, {static_cast<uint32_t>(plan.blocks()), 1, kThreads, 1, 0},
         arguments);
}

}  // namespace precast::multi_tensor
