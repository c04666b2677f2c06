// For emulated_ops.cpp: what the host files of the norms link to, without the kernels.
#pragma once

#include <stdlib.h>

#include "norm/cpu.h"

#define NO_NORM(name, level)                                                              \
  namespace name::level {                                                                 \
  void forward(const ForwardRows&, int64_t, int64_t) { abort(); }                         \
  void backward(const BackwardRows&, int64_t, int64_t) { abort(); }                       \
  void reduce(const double*, int64_t, int64_t, void*, int, int64_t, int64_t) { abort(); } \
  }
#define NO_CPU_LEVEL(level) NO_NORM(rms_norm, level) NO_NORM(layer_norm, level) NO_GATED_NORM(level)
#define NO_GATED_NORM(level)                                                              \
  namespace gated_norm::level {                                                           \
  void forward(const GatedRows&, int64_t, int64_t) { abort(); }                           \
  void backward(const GatedRows&, int64_t, int64_t) { abort(); }                          \
  void reduce(const double*, int64_t, int64_t, void*, int, int64_t, int64_t) { abort(); } \
  }
