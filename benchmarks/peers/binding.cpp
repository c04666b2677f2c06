// The peer of the cold-build benchmark: the same CPU kernels bound the usual way, with pybind11 and torch/extension.h.
#include <ATen/Parallel.h>
#include <torch/extension.h>

#include <cmath>
#include <tuple>
#include <type_traits>
#include <vector>

#include "cpu_optim/cpu.h"
#include "multi_tensor/rules.h"
#include "norm/cpu.h"

namespace {

namespace adam = precast::cpu_optim;
namespace norm = precast::rms_norm;

// One instruction set, as such an extension has it: its builder knows one set of flags.
namespace adam_level = precast::cpu_optim::PRECAST_CPU_LEVEL;
namespace norm_level = precast::rms_norm::PRECAST_CPU_LEVEL;

int dtype_of(const torch::Tensor& t) {
  switch (t.scalar_type()) {
    case torch::kFloat:
      return static_cast<int>(adam::Type::kFloat32);
    case torch::kHalf:
      return static_cast<int>(adam::Type::kFloat16);
    case torch::kBFloat16:
      return static_cast<int>(adam::Type::kBFloat16);
    default:
      TORCH_CHECK(false, "wanted float32, float16 or bfloat16, found ", t.scalar_type());
  }
}

void check(const torch::Tensor& t, const torch::Tensor& weight) {
  TORCH_CHECK(t.is_cpu() && weight.is_cpu(), "wanted CPU tensors");
  TORCH_CHECK(t.dim() >= 1 && t.size(-1) == weight.size(0), "weight does not fit the last dimension");
  TORCH_CHECK(t.scalar_type() == weight.scalar_type(), "wanted one dtype");
}

std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& given,
                                                 const c10::optional<torch::Tensor>& residual,
                                                 const torch::Tensor& weight, double eps) {
  check(given, weight);
  const torch::Tensor x = given.contiguous();
  const torch::Tensor added = residual ? residual->contiguous() : torch::Tensor();
  torch::Tensor y = torch::empty_like(x);
  torch::Tensor sum = residual ? torch::empty_like(x) : torch::Tensor();
  const int64_t hidden = x.size(-1);
  norm::ForwardRows rows{};
  rows.x = x.data_ptr();
  rows.residual = residual ? added.data_ptr() : nullptr;
  rows.weight = weight.data_ptr();
  rows.y = y.data_ptr();
  rows.sum = residual ? sum.data_ptr() : nullptr;
  rows.hidden = rows.x_stride = rows.residual_stride = rows.y_stride = rows.sum_stride = hidden;
  rows.eps = static_cast<float>(eps);
  rows.dtype = dtype_of(x);
  rows.casting = norm::kCastingNone;
  at::parallel_for(0, x.numel() / hidden, 1,
                   [&](int64_t begin, int64_t end) { norm_level::forward(rows, begin, end); });
  return {y, sum};
}

std::tuple<torch::Tensor, torch::Tensor> backward(const torch::Tensor& grad, const torch::Tensor& x,
                                                  const torch::Tensor& weight, double eps) {
  check(x, weight);
  constexpr int64_t kChunk = 64;
  const int64_t hidden = x.size(-1), count = x.numel() / hidden, chunks = (count + kChunk - 1) / kChunk;
  torch::Tensor grad_x = torch::empty_like(x), grad_weight = torch::empty_like(weight);
  norm::BackwardRows rows{};
  using Part = std::remove_pointer_t<decltype(rows.parts)>;
  torch::Tensor parts = torch::empty({chunks, hidden}, weight.options().dtype(c10::CppTypeToScalarType<Part>::value));
  rows.grad = grad.data_ptr();
  rows.x = x.data_ptr();
  rows.weight = weight.data_ptr();
  rows.grad_x = grad_x.data_ptr();
  rows.parts = parts.data_ptr<Part>();
  rows.rows = count;
  rows.hidden = rows.grad_stride = rows.x_stride = hidden;
  rows.chunk_rows = kChunk;
  rows.eps = static_cast<float>(eps);
  rows.dtype = dtype_of(x);
  rows.casting = norm::kCastingNone;
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) { norm_level::backward(rows, begin, end); });
  at::parallel_for(0, hidden, 1024, [&](int64_t begin, int64_t end) {
    norm_level::reduce(rows.parts, chunks, hidden, grad_weight.data_ptr(), rows.dtype, begin, end);
  });
  return {grad_x, grad_weight};
}

adam::Factor factor(double value) {
  const float high = static_cast<float>(value);
  return {high, static_cast<float>(value - high)};
}

void step(const std::vector<torch::Tensor>& params, const std::vector<torch::Tensor>& grads,
          const std::vector<torch::Tensor>& first, const std::vector<torch::Tensor>& second, int64_t count, double lr,
          double beta1, double beta2, double eps, double weight_decay) {
  std::vector<adam::Slot> slots;
  int64_t units = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    TORCH_CHECK(params[i].is_contiguous() && params[i].scalar_type() == torch::kFloat, "wanted contiguous float32");
    slots.push_back({{params[i].data_ptr(), adam::Type::kFloat32},
                     {grads[i].data_ptr(), adam::Type::kFloat32},
                     {{first[i].data_ptr(), adam::Type::kFloat32}, {second[i].data_ptr(), adam::Type::kFloat32}, {}},
                     {},
                     params[i].numel(),
                     units,
                     0});
    units += adam::units(params[i].numel());
  }
  adam::Step values{};
  values.grad_scale = 1.0f;
  values.beta1 = factor(beta1);
  values.beta2 = factor(beta2);
  values.decay = factor(1.0 - lr * weight_decay);
  values.rest1 = static_cast<float>(1.0 - beta1);
  values.rest2 = static_cast<float>(1.0 - beta2);
  values.minus_step_size = static_cast<float>(-lr / (1.0 - std::pow(beta1, count)));
  values.root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, count)));
  values.eps = static_cast<float>(eps);
  const adam::Work work = {slots.data(), static_cast<int64_t>(slots.size()), &values, precast::rules::Adam::kNumber,
                           false};
  at::parallel_for(0, units, 1024, [&](int64_t begin, int64_t end) { adam_level::update(work, begin, end); });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &forward);
  m.def("backward", &backward);
  m.def("step", &step);
}
