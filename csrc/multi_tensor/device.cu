// Optimizer steps over lists of tensors on the GPU, in one launch for all of them; and norms, scaling and sums of
// lists.
//
// The warps of a block search the table for the block's tensor. The block handles 512 elements of it, four per thread.
// Dtypes and the kind of update are read at run time: a whole block takes the same branches, and memory is the
// bottleneck. Arithmetic is in float32. Sums have a fixed order, so the same input gives the same bits.
#include "entries.h"
#include "list.cuh"

#define PRECAST_FORMULA static DEVICE
#include "rules.h"

namespace precast {
namespace multi_tensor {

using namespace rules;

// 1 - beta^step, accurate to the last digits even if beta is close to one.
DEVICE float correction(float log_beta, float step) { return -expm1f(step * log_beta); }

// One thread per tensor: advances its step count, unless the gradients overflowed, and writes its coefficients.
DEVICE void prepare_all(const PrepareArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.count) return;
  const int number = static_cast<int>(a.rows[index].group) - a.first_group;
  if (number < 0 || number >= a.groups) return;
  const Group& group = a.group[number];
  Coefficients c;
  c.skip = a.found_inf != nullptr ? *a.found_inf : 0.0f;
  const float before = a.steps != nullptr ? a.steps[a.slots[index]] : a.step - 1.0f, step = before + 1.0f;
  if (c.skip == 0.0f && a.steps != nullptr) a.steps[a.slots[index]] = step;
  const float lr = group.device_lr != nullptr ? *group.device_lr : group.lr;
  c.grad = a.flags & kMaximize ? -a.factor : a.factor;
  if (a.grad_scale != nullptr) c.grad /= *a.grad_scale;
  if (a.norm != nullptr) {
    const float norm = *a.norm / (a.grad_scale != nullptr ? *a.grad_scale : 1.0f);
    // Not fminf, which would turn a NaN into one.
    const float share = a.max_norm / (norm + 1e-6f);
    c.grad *= share >= 1.0f ? 1.0f : share;
  }
  c.rate = lr;
  c.decay = a.flags & kDecoupled ? lr * group.weight_decay : 0.0f;
  c.l2 = a.flags & kDecoupled ? 0.0f : group.weight_decay;
  c.one_minus_beta1 = group.one_minus_beta1;
  c.one_minus_beta2 = group.one_minus_beta2;
  c.extra = group.extra;
  c.eps = group.eps;
  c.root = c.bias = 1.0f;
  c.first = before == 0.0f ? 1.0f : 0.0f;
  if (OnGpu::corrects(a.kind)) {
    if ((a.flags & kUncorrected) == 0) {
      c.bias = 1.0f / correction(group.log_beta1, step);
      c.root = 1.0f / sqrtf(correction(group.log_beta2, step));
    }
    c.rate = a.kind == Adam::kNumber ? lr * c.bias : lr;
    if (a.kind == Lamb::kNumber) c.decay = a.flags & kDecoupled ? group.weight_decay : 0.0f;
  }
  if (OnGpu::slows(a.kind)) c.rate = lr / (1.0f + before * group.extra);
  a.coefficients[index] = c;
}

// The values of one element, updated in place, and the operations of its rule (rules.h).
template <class Rule>
struct Element {
  float param, grad, first, second, third;
  const Coefficients& c;
  const Row& row;
  const int bits;

  DEVICE int flags() const { return bits; }
  DEVICE bool has_first() const { return row.first != nullptr; }
  DEVICE bool has_third() const { return row.third != nullptr; }
  DEVICE float gradient() const { return fmaf(c.l2, param, grad * c.grad); }
  DEVICE float average1(float average, float g) const {
    const bool summed = Rule::kNumber == Lamb::kNumber && (bits & kSummed) != 0;
    return summed ? fmaf(c.extra, average, g) : fmaf(g - average, c.one_minus_beta1, average);
  }
  DEVICE float average2(float average, float g) const { return fmaf(g - average, c.one_minus_beta2, average); }
  DEVICE float average2_of_squares(float average, float g) const {
    // A square that has overflowed stays infinite, so that the parameter stays.
    const float square = g * g;
    return fmaf(average < infinity() ? square - average : square, c.one_minus_beta2, average);
  }
  DEVICE float add_square(float sum, float g) const { return fmaf(g, g, sum); }
  DEVICE float accumulate(float momentum, float g) const {
    return c.first != 0.0f ? g : fmaf(c.extra, momentum, c.one_minus_beta1 * g);
  }
  DEVICE float add_momentum(float momentum, float g) const { return fmaf(c.extra, momentum, g); }
  DEVICE float maximum(float before, float size) const {
    // Like torch's maximum: a NaN of either stays NaN.
    return before < size || size != size ? size : before;
  }
  DEVICE float root(float square) const { return fmaf(sqrtf(square), c.root, c.eps); }
  DEVICE float plain_root(float square) const { return sqrtf(square) + c.eps; }
  DEVICE float corrected(float average) const { return average * c.bias; }
  DEVICE float add_decay(float direction) const { return fmaf(c.decay, param, direction); }
  DEVICE float sign(float v) const { return v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : v; }  // NaN stays NaN
  DEVICE void decay() { param = fmaf(-c.decay, param, param); }
  DEVICE void step(float direction) { param = fmaf(-c.rate, direction, param); }
};

// The four elements of a thread.
struct Streams {
  Quad param, grad, first, second, third;
};

template <class Rule>
DEVICE void advance_all(Streams& s, const Coefficients& c, const Row& row, int flags) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    Element<Rule> e = {
        get(s.param, k), get(s.grad, k), get(s.first, k), get(s.second, k), get(s.third, k), c, row, flags};
    Rule::advance(e);
    put(s.param, k, e.param);
    put(s.first, k, e.first);
    put(s.second, k, e.second);
    put(s.third, k, e.third);
  }
}

// One of the rules of a list: the one with this number, or else the last.
template <class Rule, class... Others>
DEVICE void advance_one_of(List<Rule, Others...>, int number, Streams& s, const Coefficients& c, const Row& row,
                           int flags) {
  if (sizeof...(Others) == 0 || number == Rule::kNumber) {
    advance_all<Rule>(s, c, row, flags);
  } else if constexpr (sizeof...(Others) > 0) {
    advance_one_of(List<Others...>(), number, s, c, row, flags);
  }
}

// Divides a gradient by the loss scale, in place.
DEVICE void unscale(const Row& row, u32 type, const Place& at, Quad grad, float scale) {
  const float by = 1.0f / scale;
#pragma unroll
  for (int k = 0; k < 4; ++k) put(grad, k, get(grad, k) * by);
  keep(const_cast<char*>(row.grad), type, at, grad);
}

// Five instances. kAny: any update and any dtypes. kOfLamb: LAMB's two launches, the direction and the step along it.
// The others need fewer registers: Adam without amsgrad if everything is float32, or everything but the gradients and
// copies, and no gradient is unscaled, for which it has no register left; and updates with at most one state if
// everything is float32. H200, 671 M elements, share of the copy rate:
// Adam 1.00, with masters 0.98; SGD, Adagrad and Lion 1.01. With kAny: SGD 0.82, Adagrad 0.78, amsgrad 0.90.
enum Instance { kAny, kOfLamb, kPlainAdam, kMasterAdam, kPlainOthers };

template <Instance instance>
DEVICE void update_all(const UpdateArgs& a) {
  alignas(16) __shared__ float shared[2][32];
  u32 tensor, chunk;
  find(a.first, a.count, tensor, chunk);
  Row row = read(a.rows + tensor);
  const Coefficients c = read(a.coefficients + tensor);
  if (c.skip != 0.0f) return;
  if (instance == kPlainAdam) row.third = row.copy = nullptr, row.types = 0;
  if (instance == kMasterAdam) row.third = nullptr;
  if (instance == kPlainOthers) row.second = row.third = row.copy = nullptr, row.types = 0;
  const Place at(row, chunk);
  const bool lamb = instance == kOfLamb && a.kind == Lamb::kNumber,
             apply = instance == kOfLamb && a.kind == LambApply::kNumber;
  // float32, float16 or bfloat16. With masters, gradients and copies are never float32.
  const bool masters = instance == kMasterAdam, adam = masters || instance == kPlainAdam;
  const bool has_first = (adam || row.first != nullptr) && !apply,
             has_second = (adam || row.second != nullptr) && !apply;
  const u32 narrow = 1u + (row.types >> 3 & 1u);
  const u32 param = masters ? 0 : row.types & 3u, grad = masters ? narrow : row.types >> 2 & 3u;
  const u32 state = masters ? 0 : row.types >> 4 & 3u, copy = masters ? narrow : row.types >> 6 & 3u;

  const bool has_third = row.third != nullptr;
  Streams s = {};
  s.param = fetch(row.param, param, at);
  if (!apply) s.grad = fetch(row.grad, grad, at);
  if (has_first) s.first = fetch(row.first, state, at);
  if (has_second) s.second = fetch(row.second, state, at);
  if (has_third && !lamb) s.third = fetch(row.third, state, at);

  float ratio = c.rate;
  if (apply) {
    const float size = a.sums[2 * tensor], length = a.sums[2 * tensor + 1];
    const bool adapts = size > 0.0f && length > 0.0f && (c.decay != 0.0f || (a.flags & kAlwaysAdapt) != 0);
    if (adapts) ratio *= sqrtf(size) / sqrtf(length);
  }
  widen(s.param, param, at);
  if (!apply) widen(s.grad, grad, at);
  if (!masters && !apply && a.grad_scale != nullptr) unscale(row, grad, at, s.grad, *a.grad_scale);
  if (has_first) widen(s.first, state, at);
  if (has_second) widen(s.second, state, at);
  if (has_third && !lamb) widen(s.third, state, at);

  float sizes[2] = {0.0f, 0.0f};
  if (apply) {
#pragma unroll
    for (int k = 0; k < 4; ++k) put(s.param, k, fmaf(-ratio, get(s.third, k), get(s.param, k)));
  } else if (instance == kOfLamb) {
    advance_all<Lamb>(s, c, row, a.flags);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (!at.has(k)) continue;
      sizes[0] = fmaf(get(s.param, k), get(s.param, k), sizes[0]);
      sizes[1] = fmaf(get(s.third, k), get(s.third, k), sizes[1]);
    }
  } else if (adam || (instance == kAny && a.kind == Adam::kNumber)) {
    advance_all<Adam>(s, c, row, a.flags);
  } else {
    advance_one_of(OneState(), a.kind, s, c, row, a.flags);
  }
  if ((masters || row.copy != nullptr) && !lamb) keep(row.copy, copy, at, s.param);
  if (!lamb) keep(row.param, param, at, s.param);
  if (has_first) keep(row.first, state, at, s.first);
  if (has_second) keep(row.second, state, at, s.second);
  if (has_third && !apply) keep(row.third, state, at, s.third);
  if (lamb) {
    const float size = row_sum(sizes[0], shared[0]), length = row_sum(sizes[1], shared[1]);
    if (threadIdx.x == 0) {
      a.parts[2 * static_cast<i64>(blockIdx.x)] = size;
      a.parts[2 * static_cast<i64>(blockIdx.x) + 1] = length;
    }
  }
}

// The sum of squares of 8192 elements of a gradient.
DEVICE void norm_parts(const UpdateArgs& a) {
  alignas(16) __shared__ float shared[32];
  u32 tensor, chunk;
  find(a.first, a.count, tensor, chunk);
  const Row row = read(a.rows + tensor);
  const u32 grad = row.types >> 2 & 3u;
  float sum = 0.0f;
#pragma unroll 4
  for (u32 i = 0; i < kNormChunk / kChunk; ++i) {
    const Place at(row, chunk * (kNormChunk / kChunk) + i);
    Quad q = fetch(row.grad, grad, at);
    widen(q, grad, at);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float v = get(q, k);
      sum = fmaf(v, v, sum);  // zero past the end
    }
  }
  sum = row_sum(sum, shared);
  if (threadIdx.x == 0) a.parts[blockIdx.x] = sum;
}

// One block per tensor and number: sums its parts.
DEVICE void sum_each(const SumArgs& a) {
  alignas(16) __shared__ float shared[32];
  const u32 tensor = blockIdx.x, number = blockIdx.y;
  float sum = 0.0f;
  for (u32 i = a.first[tensor] + threadIdx.x; i < a.first[tensor + 1]; i += blockDim.x) {
    sum += a.parts[static_cast<i64>(i) * a.width + number];
  }
  sum = row_sum(sum, shared);
  if (threadIdx.x == 0) a.sums[tensor * a.width + number] = sum;
}

// One block: the root of the sum over all tensors.
DEVICE void sum_total(const SumArgs& a) {
  alignas(16) __shared__ float shared[32];
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < a.count; i += blockDim.x) sum += a.sums[i];
  sum = row_sum(sum, shared);
  if (threadIdx.x == 0) *a.total = sqrtf(sum);
}

DEVICE void axpby_all(const AxpbyArgs& a) {
  u32 tensor, chunk;
  find(a.first, a.count, tensor, chunk);
  const Row row = read(a.rows + tensor);
  const float factor = a.a * (a.factor != nullptr ? *a.factor : 1.0f);
  // Clipping that has nothing to clip.
  if (factor == 1.0f && row.first == nullptr && row.grad == row.param && a.found_inf == nullptr) return;
  const Place at(row, chunk);
  const u32 out = row.types & 3u, in = row.types >> 2 & 3u, other = row.types >> 4 & 3u;
  Quad x = fetch(row.grad, in, at), y = {};
  if (row.first != nullptr) y = fetch(row.first, other, at);
  widen(x, in, at);
  widen(y, other, at);
  bool finite = true;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float p = get(x, k), q = get(y, k);
    finite = finite && fabsf(p) <= 3.4028235e38f && fabsf(q) <= 3.4028235e38f;  // zero past the end
    put(x, k, row.first != nullptr ? fmaf(factor, p, a.b * q) : factor * p);
  }
  keep(row.param, out, at, x);
  if (!finite && a.found_inf != nullptr) *a.found_inf = 1.0f;  // every writer writes the same value
}

// H200: 0.98 of the copy rate with 1280 threads per multiprocessor, 0.95 with 1024. For Blackwell the compiler needs
// more registers.
constexpr int kMasterThreads = PRECAST_ARCH < 1000 ? 1280 : 1024;

MULTI_TENSOR_KERNELS(KERNEL)

}  // namespace multi_tensor
}  // namespace precast
