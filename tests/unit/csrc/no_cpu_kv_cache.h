// For emulated_ops.cpp: what the host files of the paged caches link to, without the kernels.
#pragma once

#include <stdlib.h>

#include "norm/cpu.h"
#include "rotary/cpu.h"

#define NO_CPU_LEVEL(level)                                       \
  namespace rotary::level {                                       \
  void rotate_heads(const Work&, int64_t, int64_t) { abort(); }   \
  }                                                               \
  namespace rms_norm::level {                                     \
  void forward(const ForwardRows&, int64_t, int64_t) { abort(); } \
  }
