// For emulated_ops.cpp: what the host files of the norms link to, without the kernels.
#pragma once

#include <stdlib.h>

#include "layer_norm/cpu.h"
#include "rms_norm/cpu.h"

#define NO_CPU_LEVEL(level)                                                                      \
  namespace rms_norm::level {                                                                    \
  void forward(const ForwardRows&, int64_t, int64_t) { abort(); }                                \
  void backward(const BackwardRows&, int64_t, int64_t) { abort(); }                              \
  void reduce_weight(const double*, int64_t, int64_t, void*, int, int64_t, int64_t) { abort(); } \
  }                                                                                              \
  namespace layer_norm::level {                                                                  \
  void forward(const ForwardRows&, int64_t, int64_t) { abort(); }                                \
  void backward(const BackwardRows&, int64_t, int64_t) { abort(); }                              \
  void reduce(const double*, int64_t, int64_t, void*, int, int64_t, int64_t) { abort(); }        \
  }
