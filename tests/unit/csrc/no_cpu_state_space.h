// For emulated_ops.cpp: what the host file of the state-space ops links to, without the kernels.
#pragma once

#include <stdlib.h>

#include "state_space/cpu.h"

#define NO_CPU_LEVEL(level)                                     \
  namespace state_space::level {                                \
  void update(const UpdateRows&, int64_t, int64_t) { abort(); } \
  }
