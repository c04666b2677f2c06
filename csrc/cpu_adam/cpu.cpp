// Adam and AdamW over any number of parameters, sixteen elements at a time. Compiled once per CPU level.
//
// The work is bound by memory (28 bytes per parameter in fp32), so one loop on floats serves every mix of formats: a
// tensor that is not fp32 passes through a buffer that stays in the first-level cache. On the measured machines this
// costs nothing, and one loop compiles in a fraction of the time of one loop per mix.
#include "cpu.h"

#include "../common/simd.h"

namespace precast::cpu_adam::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

constexpr int64_t kBlock = 512;  // elements: four buffers of 2 KiB. Larger ones idle the memory between the passes.

// How far ahead of the loop the lines that it writes are asked for, to be owned by this core when they come: 3 % less
// time than the hardware's prefetch alone (median of 61 paired runs). Asking for the gradient's as well gains nothing.
constexpr int64_t kAhead = 64;

// x * (high + low) + c, rounded once but for the far smaller low part.
PRECAST_INLINE Floats scale_add(Floats high, Floats low, Floats x, Floats c) { return fma(high, x, fma(low, x, c)); }

void update_floats(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t count,
                   const Step& step) {
  const Floats grad_scale = broadcast(step.grad_scale), l2 = broadcast(step.l2);
  const Floats beta1_high = broadcast(step.beta1.high), beta1_low = broadcast(step.beta1.low);
  const Floats beta2_high = broadcast(step.beta2.high), beta2_low = broadcast(step.beta2.low);
  const Floats decay_high = broadcast(step.decay.high), decay_low = broadcast(step.decay.low);
  const Floats rest1 = broadcast(step.one_minus_beta1), rest2 = broadcast(step.one_minus_beta2);
  const Floats minus_step_size = broadcast(step.minus_step_size), root_scale = broadcast(step.root_scale);
  const Floats eps = broadcast(step.eps);
  const bool add_l2 = step.l2 != 0.0f;
  for (int64_t i = 0; i < count; i += kLanes) {
    __builtin_prefetch(param + i + kAhead, 1);
    __builtin_prefetch(exp_avg + i + kAhead, 1);
    __builtin_prefetch(exp_avg_sq + i + kAhead, 1);
    Floats p = load(param + i), g = load(grad + i) * grad_scale;
    if (add_l2) g = fma(l2, p, g);
    Floats m = scale_add(beta1_high, beta1_low, load(exp_avg + i), rest1 * g);
    Floats v = scale_add(beta2_high, beta2_low, load(exp_avg_sq + i), rest2 * g * g);
    Floats denominator = fma(sqrt(v), root_scale, eps);
    p = scale_add(decay_high, decay_low, p, minus_step_size * (m / denominator));
    store(exp_avg + i, m);
    store(exp_avg_sq + i, v);
    store(param + i, p);
  }
}

template <class T>
void widen_all(const T* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i < count) store(to + i, load_part(from + i, count - i));
}

template <class T>
void narrow_all(const float* from, T* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i < count) store_part(to + i, load(from + i), count - i);
}

// The `count` elements of a stream from `at` on, as floats that may be read (and, for fp32, written) up to the next
// multiple of sixteen: in place when that is so already, else in `buffer`.
float* open(const Stream& stream, int64_t at, int64_t count, float* buffer) {
  switch (stream.type) {
    case Type::kFloat32: {
      float* data = static_cast<float*>(stream.data) + at;
      if (count % kLanes == 0) return data;
      widen_all<float>(data, buffer, count);
      break;
    }
    case Type::kFloat16:
      widen_all(static_cast<const f16*>(stream.data) + at, buffer, count);
      break;
    case Type::kBFloat16:
      widen_all(static_cast<const bf16*>(stream.data) + at, buffer, count);
      break;
  }
  return buffer;
}

// Brings floats back to where open() took them from; nothing to do when they were changed in place.
void write(const Stream& stream, int64_t at, int64_t count, const float* floats) {
  switch (stream.type) {
    case Type::kFloat32: {
      float* data = static_cast<float*>(stream.data) + at;
      if (data != floats) narrow_all(floats, data, count);
      break;
    }
    case Type::kFloat16:
      narrow_all(floats, static_cast<f16*>(stream.data) + at, count);
      break;
    case Type::kBFloat16:
      narrow_all(floats, static_cast<bf16*>(stream.data) + at, count);
      break;
  }
}

template <class T>
void stream_all(const float* from, T* to, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) stream(to + i, load(from + i));
}

void write_copy(const Stream& copy, int64_t at, int64_t count, const float* floats, bool past_caches) {
  char* data = static_cast<char*>(copy.data) + at * 2;
  bool whole_lines = count % (2 * kLanes) == 0 && reinterpret_cast<uintptr_t>(data) % 64 == 0;
  if (!past_caches || !whole_lines) {
    write(copy, at, count, floats);
  } else if (copy.type == Type::kFloat16) {
    stream_all(floats, reinterpret_cast<f16*>(data), count);
  } else {
    stream_all(floats, reinterpret_cast<bf16*>(data), count);
  }
}

void update_block(const Slot& slot, int64_t at, int64_t count, const Step& step) {
  alignas(64) float buffer[4][kBlock];
  float* param = open(slot.param, at, count, buffer[0]);
  float* grad = open(slot.grad, at, count, buffer[1]);
  float* exp_avg = open(slot.exp_avg, at, count, buffer[2]);
  float* exp_avg_sq = open(slot.exp_avg_sq, at, count, buffer[3]);
  update_floats(param, grad, exp_avg, exp_avg_sq, count, step);
  write(slot.exp_avg, at, count, exp_avg);
  write(slot.exp_avg_sq, at, count, exp_avg_sq);
  write(slot.param, at, count, param);
  if (slot.copy.data != nullptr) write_copy(slot.copy, at, count, param, step.stream_copies);
}

// The last slot that begins at or before `unit`.
int64_t find_slot(const Slot* slots, int64_t count, int64_t unit) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (slots[middle].first_unit <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

void update(const Slot* slots, int64_t count, const Step& step, int64_t begin, int64_t end) {
  for (int64_t i = find_slot(slots, count, begin); i < count && slots[i].first_unit < end; ++i) {
    const Slot& slot = slots[i];
    int64_t at = begin > slot.first_unit ? (begin - slot.first_unit) * kUnit : 0;
    int64_t stop = (end - slot.first_unit) * kUnit;
    if (stop > slot.numel) stop = slot.numel;
    for (; at < stop; at += kBlock) update_block(slot, at, stop - at < kBlock ? stop - at : kBlock, step);
  }
  if (step.stream_copies) stream_end();
}

}  // namespace precast::cpu_adam::PRECAST_CPU_LEVEL
