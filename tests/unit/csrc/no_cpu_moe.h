// For emulated_ops.cpp: what the host files of the mixture of experts link to, without the kernels.
#pragma once

#include <stdlib.h>

#include "moe/cpu.h"

#define NO_CPU_LEVEL(level)                                                        \
  namespace moe::level {                                                           \
  void gate(const GateRows&, int64_t, int64_t) { abort(); }                        \
  void gate_backward(const GateBackwardRows&, int64_t, int64_t) { abort(); }       \
  void combine(const CombineRows&, int64_t, int64_t) { abort(); }                  \
  void combine_backward(const CombineBackwardRows&, int64_t, int64_t) { abort(); } \
  }
