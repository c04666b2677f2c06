// For emulated_ops.cpp: what the host files of the gated activations link to, without the kernels.
#pragma once

#include <stdlib.h>

#include "activations/cpu.h"

#define NO_CPU_LEVEL(level)                                         \
  namespace activations::level {                                    \
  void forward(const ForwardRows&, int64_t, int64_t) { abort(); }   \
  void backward(const BackwardRows&, int64_t, int64_t) { abort(); } \
  }
