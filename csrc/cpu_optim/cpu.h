// The optimizers on the CPU: the interface between the host files, which handle tensors and threads, and cpu.cpp, which
// handles vectors and is compiled once per CPU level. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"

namespace precast::cpu_optim {

// The numbers of precast::DType.
enum class Type : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

struct Stream {
  void* data;  // null: the slot has no such tensor
  Type type;
};

// One parameter with its gradient and state: the same number of elements, all dense and in the same order. The states
// are those of the rule, in its order (../multi_tensor/rules.h).
constexpr int kStates = 3;

struct Slot {
  Stream param, grad, state[kStates], copy;
  int64_t numel;
  int64_t first_unit;  // start of this slot, in units of the range that all slots form together
  int64_t index;       // of the parameter in its list
  int64_t step;        // index of its step numbers
};

// Threads split the range at whole units, counted from the start of a slot. A unit is 64 bytes of the narrowest format,
// so that no two threads write to one cache line of an aligned tensor.
constexpr int64_t kUnit = 32;

constexpr int64_t units(int64_t numel) { return (numel + kUnit - 1) / kUnit; }

// A factor near one, as the sum of two floats of equal sign. A single float would be off by up to 3e-8, the same in
// every step. With 0.999f a second moment settles 1.3e-5 too high, and 1 - lr * weight_decay keeps only the first few
// digits of the decay.
struct Factor {
  float high, low;
};

struct Step {
  float grad_scale;  // negated to maximize
  Factor beta1, beta2, momentum, decay;
  float rest1, rest2;  // factors of the gradient that go with beta1 and beta2
  float l2;            // weight decay added to the gradient; 0 if decoupled
  float minus_step_size;
  float root_scale;  // 1 / sqrt(bias_correction2)
  float eps;
  int flags;  // rules::Flag
};

// `count` slots, sorted by first_unit, and their step numbers.
struct Work {
  const Slot* slots;
  int64_t count;
  const Step* steps;
  int rule;            // its number
  bool stream_copies;  // write copies with stores that bypass the caches
  float unscale;       // gradients are multiplied by it in place; 0: they are only read
};

// Updates the units [begin, end) of the range that the slots form.
using UpdateFunction = void (*)(const Work& work, int64_t begin, int64_t end);

PRECAST_CPU_FUNCTION(update, (const Work& work, int64_t begin, int64_t end))

}  // namespace precast::cpu_optim
