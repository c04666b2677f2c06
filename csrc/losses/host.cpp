// Cross entropy: checks, allocation, and the choice of a kernel.
#include <initializer_list>

#include "../cpu/cpu_level.h"
#include "../gpu/row_policy.h"
#include "args.h"
#include "cpu.h"
#include "entries.h"

namespace precast::losses {
namespace {

// ---- which kernel serves which row ----
//
//   vectors in a row    kernel    threads per row
//   1 to 2048           v4        a fourth, part of a warp up to 32
//   2049 to 65536       wide      up to 8 x 1024: a cluster of blocks has a row; on 9.0 and newer
//   unaligned, to 2048  shifted   as v4
//   more, or unaligned  any       up to 512, which read the row twice

PRECAST_ENTRIES(CROSS_ENTROPY_KERNELS)

KernelFamily kernels = {"cross_entropy", kEntries, entry::kCount};

constexpr ByDType kV4 = PRECAST_BY_DTYPE(cross_entropy, _v4), kShifted = PRECAST_BY_DTYPE(cross_entropy, _shifted),
                  kAny = PRECAST_BY_DTYPE(cross_entropy, _any), kWide = PRECAST_BY_DTYPE(cross_entropy, _wide),
                  kScale = PRECAST_BY_DTYPE(cross_entropy, _scale);

// As for softmax: two exponentials per element, so blocks are as large as they can be.
// 8192 x 151936 takes 2.04 ms on an H100 with three blocks of 928 threads, 2.17 with four of 608.
constexpr ClusterForm kForm = {8, 1, 1024, 2, true}, kFormOfThree = {8, 1, 1024, 3, true};

constexpr uint32_t kFromTheRow = kFirstOfFamily;  // not from numbers that are given
constexpr uint32_t kEvenly = 2 * kFirstOfFamily;  // no label smoothing by weights

constexpr RowRule kRules[] = {
    {kUnaligned | kFromTheRow, 4 * 512, kShifted, Form::kRegisters, 4, 64},
    {kAligned | kFromTheRow, 4 * 512, kV4, Form::kRegisters, 4},
    {kAligned | kFromTheRow | kEvenly | kClusters, 2 * 8 * 1024, kWide, Form::kCluster, 0, 0, kForm},
    {kAligned | kFromTheRow | kEvenly | kClusters, 3 * 8 * 1024, kWide, Form::kCluster, 0, 0, kFormOfThree},
    {kAligned | kFromTheRow | kEvenly | kClusters, 8 * 8 * 1024, kWide, Form::kCluster, 0, 0, kForm},
    {0, 0, kAny, Form::kAnyRow},
};
constexpr RowRule kScaleRules[] = {{0, 0, kScale, Form::kAnyRow}};

// ---- the two devices ----

struct Device {
  void (*check)(const char* op, const LossRows& work);
  void (*compute)(const LossRows& work, int32_t index);
  void (*scale)(const ScaleRows& work, int32_t index);
};

void compute_cuda(const LossRows& work, int32_t device) {
  const DType dtype = static_cast<DType>(work.dtype);
  const int64_t bytes = element_bytes(dtype), row_bytes = work.columns * bytes;
  LossArgs args;
  args.x_stride = work.x_stride * bytes;
  args.grad_stride = work.grad_stride * bytes;
  const bool writes = work.grad != nullptr;
  const uint64_t misaligned =
      misalignment(work.x, args.x_stride) | (writes ? misalignment(work.grad, args.grad_stride) : 0);
  const bool alike = !writes || lies_alike({work.x, args.x_stride}, {work.grad, args.grad_stride});
  const uint32_t has =
      (work.given == nullptr ? kFromTheRow : 0) | (work.weight == nullptr || work.smoothing == 0 ? kEvenly : 0);
  RowKernel choice = choose_row(kRules, kernels,
                                {has, work.rows, work.columns, vectors_of(misaligned | (row_bytes & 15), row_bytes),
                                 alike ? shifted_vectors(row_bytes, bytes) : 0, device});
  const int entry = choice.kernel[dtype];
  widen_cluster(kernels, device, entry, work.rows, choice);
  args.weight = work.weight;
  args.sum = work.sum;
  args.factor_step = static_cast<int>(work.factor_step);
  args.columns = work.columns;
  args.ignore_index = work.ignore_index;
  args.row_count = work.rows;
  args.vectors = choice.vectors;
  args.smoothing = work.smoothing;
  args.of_each = work.smoothing / static_cast<float>(work.columns);
  args.z_loss = work.z_loss;
  args.narrow_target = work.narrow_target;
  args.peeled = choice.vectors == 0 && alike;
  void* arguments[] = {&args};
  for_launches(work.rows, choice, [&](int64_t begin, unsigned count, LaunchShape& shape) {
    if (choice.cluster > 1) limit_clusters(kernels, device, entry, shape);
    args.early = shape.early = starts_early(shape, device);
    args.x = static_cast<const char*>(work.x) + begin * args.x_stride;
    args.grad = writes ? static_cast<char*>(work.grad) + begin * args.grad_stride : nullptr;
    args.target = static_cast<const char*>(work.target) + begin * (work.narrow_target ? 4 : 8);
    args.given = work.given != nullptr ? work.given + begin : nullptr;
    args.factors = work.factors != nullptr ? work.factors + begin * work.factor_step : nullptr;
    args.losses = work.losses + begin;
    args.lse = work.lse + begin;
    args.rows = count;
    launch(kernels, device, entry, shape, arguments);
  });
}

void scale_cuda(const ScaleRows& work, int32_t device) {
  const DType dtype = static_cast<DType>(work.dtype);
  const int64_t bytes = element_bytes(dtype);
  ScaleArgs args;
  args.grad_stride = work.grad_stride * bytes;
  args.factor_step = work.factor_step;
  args.columns = work.columns;
  args.vectors = 0;
  args.peeled = 1;
  const RowKernel choice =
      choose_row(kScaleRules, kernels, {0, work.rows, work.columns, work.columns * bytes / 16, 0, device});
  void* arguments[] = {&args};
  for_launches(work.rows, choice, [&](int64_t begin, unsigned count, LaunchShape& shape) {
    args.grad = static_cast<char*>(work.grad) + begin * args.grad_stride;
    args.factor = work.factor + begin * work.factor_step;
    args.rows = count;
    const auto few = static_cast<uint32_t>(8 * multiprocessors(device));
    if (work.factor_step == 0 && shape.blocks_x > few) shape.blocks_x = few;
    launch(kernels, device, choice.kernel[dtype], shape, arguments);
  });
}

// A GPU cannot refuse a target without a wait: there, it makes the row's loss and gradient NaN.
void check_targets(const char* op, const LossRows& work) {
  for (int64_t i = 0; i < work.rows; ++i) {
    const int64_t target = target_at(work.target, work.narrow_target, i);
    PRECAST_CHECK((target >= 0 && target < work.columns) || target == work.ignore_index,
                  "%s: target %lld of row %lld is no class; needed 0 to %lld, or ignore_index %lld", op,
                  printable(target), printable(i), printable(work.columns - 1), printable(work.ignore_index));
  }
}
void check_nothing(const char*, const LossRows&) {}

constexpr int64_t kReadPs = 250, kScalePs = 100;  // an element, for parallel_rows

void compute_cpu(const LossRows& work, int32_t) {
  const LossFunction losses = PRECAST_AT_CPU_LEVEL(losses, losses);
  parallel_rows(work.rows, work.columns * (work.grad != nullptr ? 2 : 1) * kReadPs,
                [&](int64_t begin, int64_t end) { losses(work, begin, end); });
}

void scale_cpu(const ScaleRows& work, int32_t) {
  const ScaleFunction scale = PRECAST_AT_CPU_LEVEL(losses, scale_rows);
  parallel_rows(work.rows, work.columns * kScalePs, [&](int64_t begin, int64_t end) { scale(work, begin, end); });
}

constexpr Device kCpu = {check_targets, compute_cpu, scale_cpu}, kCuda = {check_nothing, compute_cuda, scale_cuda};

// ---- the ops, the same for both devices ----

struct Inputs {
  const Tensor& logits;
  const Tensor& target;
  const Tensor* weight;
  const Tensor* factors;
};

void check_numbers(const char* op, const Named& vector, const Named& logits) {
  PRECAST_CHECK(vector.tensor.dtype_code() == float32_code(), "%s: %s is %s; needed float32", op, vector.name,
                dtype_name(vector.tensor.dtype_code()));
  check_device(op, vector, logits.tensor, logits.name);
}

void check_size(const char* op, const Named& vector, int64_t size) {
  PRECAST_CHECK(vector.tensor.dim() == 1 && vector.tensor.sizes()[0] == size, "%s: %s has shape %s; needed (%lld,)", op,
                vector.name, shape_of(vector.tensor).text, printable(size));
}

// Rows and columns of a tensor of logits, or of its gradient.
LossRows check_logits(const char* op, const Named& logits) {
  LossRows work = {};
  const Tensor& x = logits.tensor;
  const DType dtype = dtype_of(x.dtype_code());
  PRECAST_CHECK(dtype != DType::kOther, "%s: %s is %s; needed float32, float16 or bfloat16", op, logits.name,
                dtype_name(x.dtype_code()));
  const int64_t dim = x.dim();
  PRECAST_CHECK(dim >= 1 && x.sizes()[dim - 1] > 0,
                "%s: %s has shape %s; needed (..., classes) with at least one class", op, logits.name,
                shape_of(x).text);
  PRECAST_CHECK(x.sizes()[dim - 1] < int64_t{1} << 31, "%s: %s has shape %s; needed fewer than 2^31 classes", op,
                logits.name, shape_of(x).text);
  work.dtype = static_cast<int>(dtype);
  work.columns = x.sizes()[dim - 1];
  work.rows = 1;
  for (int64_t i = 0; i + 1 < dim; ++i) work.rows *= x.sizes()[i];
  return work;
}

// What is read besides the rows.
struct Read {
  const char* name;
  const void* data;
  int64_t bytes;
};

// Rows that are written in place; no byte of what is read may lie in them.
WrittenRows rows_apart(const char* op, const Named& named, const LossRows& shape, std::initializer_list<Read> others) {
  const WrittenRows rows = written_rows(op, named, shape.rows, shape.columns);
  const int64_t bytes = element_bytes(static_cast<DType>(shape.dtype));
  const char* end = rows.data + ((shape.rows - 1) * rows.stride + shape.columns) * bytes;
  for (const Read& one : others) {
    const char* from = static_cast<const char*>(one.data);
    PRECAST_CHECK(from == nullptr || end <= from || from + one.bytes <= rows.data,
                  "%s: %s overlaps %s in memory, which is written; needed its own", op, one.name, named.name);
  }
  return rows;
}

// A checked call. It keeps copies of tensors whose layout a kernel cannot read.
class Call {
 public:
  Call(const char* op, const Inputs& in) : work_(check_logits(op, {"logits", in.logits})) {
    const Named logits = {"logits", in.logits};
    const int32_t code = in.target.dtype_code();
    PRECAST_CHECK(code == aoti_torch_dtype_int64() || code == aoti_torch_dtype_int32(),
                  "%s: target is %s; needed int64 or int32, the number of a class per row", op, dtype_name(code));
    check_device(op, {"target", in.target}, in.logits, "logits");
    const int64_t dim = in.logits.dim();
    bool fits = in.target.dim() == dim - 1;
    for (int64_t i = 0; fits && i + 1 < dim; ++i) fits = in.target.sizes()[i] == in.logits.sizes()[i];
    PRECAST_CHECK(fits, "%s: target has shape %s and logits %s; needed the shape of logits without the last dimension",
                  op, shape_of(in.target).text, shape_of(in.logits).text);
    if (in.weight != nullptr) {
      check_numbers(op, {"weight", *in.weight}, logits);
      check_size(op, {"weight", *in.weight}, work_.columns);
      weight_ = contiguous(*in.weight);
      work_.weight = static_cast<const float*>(weight_.data());
    }
    if (in.factors != nullptr) {
      take_factors(op, {"factors", *in.factors}, logits);
    }
    target_ = contiguous(in.target);
    work_.target = target_.data();
    work_.narrow_target = code == aoti_torch_dtype_int32();
  }

  void take_options(const char* op, const Device& on, int64_t ignore_index, double smoothing, double z_loss) {
    PRECAST_CHECK(smoothing >= 0 && smoothing <= 1, "%s: label_smoothing is %g; needed a number from 0 to 1", op,
                  smoothing);
    work_.ignore_index = ignore_index;
    work_.smoothing = static_cast<float>(smoothing);
    work_.z_loss = static_cast<float>(z_loss);
    on.check(op, work_);
  }

  void write_over(const char* op, const Tensor& logits) {
    const WrittenRows rows = rows_apart(op, {"logits", logits}, work_,
                                        {{"target", work_.target, work_.rows * (work_.narrow_target ? 4 : 8)},
                                         {"weight", work_.weight, work_.columns * 4},
                                         {"factors", work_.factors, factors_bytes_}});
    work_.x = work_.grad = rows.data;
    work_.x_stride = work_.grad_stride = rows.stride;
  }

  LossRows& work() { return work_; }

 private:
  // One scale or one for each row, then the sum of the weights if there are any.
  void take_factors(const char* op, const Named& factors, const Named& logits) {
    check_numbers(op, factors, logits);
    const int64_t sums = work_.weight != nullptr, count = factors.tensor.numel() - sums;
    PRECAST_CHECK(factors.tensor.dim() == 1 && (count == 1 || count == work_.rows),
                  "%s: factors has shape %s; needed (%lld,) or (%lld,)", op, shape_of(factors.tensor).text,
                  printable(1 + sums), printable(work_.rows + sums));
    factors_ = contiguous(factors.tensor);
    work_.factors = static_cast<const float*>(factors_.data());
    work_.factor_step = count == 1 ? 0 : 1;
    if (sums != 0) work_.sum = work_.factors + count;
    factors_bytes_ = factors.tensor.numel() * 4;
  }

  LossRows work_;
  int64_t factors_bytes_ = 0;
  Tensor target_{nullptr}, weight_{nullptr}, factors_{nullptr};
};

Tensor numbers_like(const Tensor& target) { return empty(target.sizes(), target.dim(), float32_code(), target); }

// The losses and the logarithms of the rows' sums; the gradient too, if there is a place for it.
TensorPair computed(const Device& on, LossRows work, const Tensor& logits, const Tensor& target) {
  TensorPair found(numbers_like(target), numbers_like(target));
  if (work.rows == 0) return found;
  work.losses = static_cast<float*>(found.first.mutable_data());
  work.lse = static_cast<float*>(found.second.mutable_data());
  on.compute(work, logits.device_index());
  return found;
}

template <const Device& on>
TensorPair loss_op(const Tensor& logits, const Tensor& target, const Tensor* weight, const Tensor* factors,
                   int64_t ignore_index, double smoothing, double z_loss) {
  const char* op = "cross_entropy";
  Call call(op, {logits, target, weight, factors});
  call.take_options(op, on, ignore_index, smoothing, z_loss);
  const ReadRows rows(logits);
  call.work().x = rows.data();
  call.work().x_stride = rows.stride();
  return computed(on, call.work(), logits, target);
}

template <const Device& on>
TensorTriple with_grad_op(const Tensor& logits, const Tensor& target, const Tensor* weight, const Tensor* factors,
                          int64_t ignore_index, double smoothing, double z_loss) {
  const char* op = "cross_entropy_with_grad";
  Call call(op, {logits, target, weight, factors});
  call.take_options(op, on, ignore_index, smoothing, z_loss);
  const ReadRows rows(logits);
  Tensor grad = empty_contiguous_like(logits);
  call.work().x = rows.data();
  call.work().x_stride = rows.stride();
  call.work().grad = grad.mutable_data();
  call.work().grad_stride = call.work().columns;
  TensorPair found = computed(on, call.work(), logits, target);
  return {std::move(found.first), std::move(found.second), std::move(grad)};
}

template <const Device& on>
TensorPair with_grad_in_place_op(const Tensor& logits, const Tensor& target, const Tensor* weight,
                                 const Tensor* factors, int64_t ignore_index, double smoothing, double z_loss) {
  const char* op = "cross_entropy_with_grad_";
  Call call(op, {logits, target, weight, factors});
  call.take_options(op, on, ignore_index, smoothing, z_loss);
  if (call.work().rows > 0) call.write_over(op, logits);
  return computed(on, call.work(), logits, target);
}

template <const Device& on>
Tensor backward_op(const Tensor& logits, const Tensor& target, const Tensor& given, const Tensor* weight) {
  const char* op = "cross_entropy_backward";
  Call call(op, {logits, target, weight, nullptr});
  LossRows& work = call.work();
  check_numbers(op, {"given", given}, {"logits", logits});
  PRECAST_CHECK(given.dim() == 2 && given.sizes()[0] == 4 && given.sizes()[1] == work.rows,
                "%s: given has shape %s; needed (4, %lld)", op, shape_of(given).text, printable(work.rows));
  Tensor grad = empty_contiguous_like(logits);
  if (work.rows == 0) return grad;
  const Tensor numbers = contiguous(given);
  const ReadRows rows(logits);
  work.given = static_cast<const float*>(numbers.data());
  work.x = rows.data();
  work.x_stride = rows.stride();
  work.grad = grad.mutable_data();
  work.grad_stride = work.columns;
  on.compute(work, logits.device_index());
  return grad;
}

template <const Device& on>
void scale_op(const Tensor& grad, const Tensor& factor) {
  const char* op = "cross_entropy_scale_";
  const LossRows shape = check_logits(op, {"grad", grad});
  check_numbers(op, {"factor", factor}, {"grad", grad});
  const int64_t count = factor.numel();
  PRECAST_CHECK(count == 1 || (factor.dim() == 1 && count == shape.rows),
                "%s: factor has shape %s; needed one element, or (%lld,)", op, shape_of(factor).text,
                printable(shape.rows));
  if (shape.rows == 0) return;
  const Tensor read = contiguous(factor);
  const WrittenRows rows = rows_apart(op, {"grad", grad}, shape, {{"factor", read.data(), count * 4}});
  on.scale({rows.data, static_cast<const float*>(read.data()), shape.rows, shape.columns, rows.stride,
            count == 1 ? 0 : 1, shape.dtype},
           grad.device_index());
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("cross_entropy", "CPU", loss_op<kCpu>),
    PRECAST_IMPLEMENTATION("cross_entropy_with_grad", "CPU", with_grad_op<kCpu>),
    PRECAST_IMPLEMENTATION("cross_entropy_with_grad_", "CPU", with_grad_in_place_op<kCpu>),
    PRECAST_IMPLEMENTATION("cross_entropy_backward", "CPU", backward_op<kCpu>),
    PRECAST_IMPLEMENTATION("cross_entropy_scale_", "CPU", scale_op<kCpu>),
    PRECAST_IMPLEMENTATION("cross_entropy", "CUDA", loss_op<kCuda>),
    PRECAST_IMPLEMENTATION("cross_entropy_with_grad", "CUDA", with_grad_op<kCuda>),
    PRECAST_IMPLEMENTATION("cross_entropy_with_grad_", "CUDA", with_grad_in_place_op<kCuda>),
    PRECAST_IMPLEMENTATION("cross_entropy_backward", "CUDA", backward_op<kCuda>),
    PRECAST_IMPLEMENTATION("cross_entropy_scale_", "CUDA", scale_op<kCuda>),
};
PRECAST_FAMILY(cross_entropy, kImplementations, &kernels);

}  // namespace
}  // namespace precast::losses
