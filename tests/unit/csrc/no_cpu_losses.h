// For emulated_ops.cpp: what the host files of the losses link to, without the kernels.
#pragma once

#include <stdlib.h>

#include "losses/cpu.h"

#define NO_CPU_LEVEL(level)                                        \
  namespace losses::level {                                        \
  void losses(const LossRows&, int64_t, int64_t) { abort(); }      \
  void scale_rows(const ScaleRows&, int64_t, int64_t) { abort(); } \
  }
