// For emulated_ops.cpp: what the host files of softmax link to, without the kernels.
#pragma once

#include <stdlib.h>

#include "softmax/cpu.h"

#define NO_CPU_LEVEL(level)                                         \
  namespace softmax::level {                                        \
  void forward(const ForwardRows&, int64_t, int64_t) { abort(); }   \
  void backward(const BackwardRows&, int64_t, int64_t) { abort(); } \
  }
