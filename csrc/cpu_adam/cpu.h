// Adam on the CPU: the seam between host.cpp, which knows tensors and threads, and cpu.cpp, which knows vectors and is
// compiled once for each CPU level. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../common/cpu_level.h"

namespace precast::cpu_adam {

// The numbers of precast::DType.
enum class Type : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

struct Stream {
  void* data;  // null: this slot has no such tensor (copies only)
  Type type;
};

// One parameter with its gradient and state: equally many elements, all dense and in the same order.
struct Slot {
  Stream param, grad, exp_avg, exp_avg_sq, copy;
  int64_t numel;
  int64_t first_unit;  // where this slot begins in the range that all slots form together, in units
};

// The range is cut between threads at whole units, counted from the start of a slot: 64 bytes of the narrowest format,
// so that no two threads write to one cache line of an aligned tensor.
constexpr int64_t kUnit = 32;

constexpr int64_t units(int64_t numel) { return (numel + kUnit - 1) / kUnit; }

// A factor near one, as the sum of two floats of equal sign. One float alone would be off by up to 3e-8, the same in
// every step: 0.999f makes a second moment that settles 1.3e-5 too high, and 1 - lr * weight_decay keeps only the first
// few digits of the decay.
struct Factor {
  float high, low;
};

struct Step {
  float grad_scale;  // negated to maximize
  Factor beta1, beta2, decay;
  float one_minus_beta1, one_minus_beta2;
  float l2;  // weight decay added to the gradient; 0 when decoupled
  float minus_step_size;
  float root_scale;  // 1 / sqrt(bias_correction2)
  float eps;
  bool stream_copies;  // write copies past the caches
};

// Updates the units [begin, end) of the range that `count` slots form. Slots are sorted by first_unit.
using UpdateFunction = void (*)(const Slot* slots, int64_t count, const Step& step, int64_t begin, int64_t end);

#define PRECAST_CPU_ADAM_LEVEL(level)                                                          \
  namespace level {                                                                            \
  void update(const Slot* slots, int64_t count, const Step& step, int64_t begin, int64_t end); \
  }

PRECAST_EACH_CPU_LEVEL(PRECAST_CPU_ADAM_LEVEL)

#undef PRECAST_CPU_ADAM_LEVEL

}  // namespace precast::cpu_adam
