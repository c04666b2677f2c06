// For emulated_ops.cpp: what the host file of the delta rule links to, without the kernels.
#pragma once

#include <stdlib.h>

#include "delta_rule/cpu.h"

#define NO_CPU_LEVEL(level)                            \
  namespace delta_rule::level {                        \
  void run(const Rule&, int64_t, int64_t) { abort(); } \
  }
