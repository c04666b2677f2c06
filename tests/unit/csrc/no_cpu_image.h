// For emulated_ops.cpp: what the host files of the image ops link to, without the kernels.
#pragma once

#include <stdlib.h>

#include "image/cpu.h"

#define NO_CPU_LEVEL(level)                                                         \
  namespace image::level {                                                          \
  void planes(const BiasActWork&, int64_t, int64_t) { abort(); }                    \
  void columns(const BiasActWork&, int64_t, int64_t) { abort(); }                   \
  void sum_parts(const double*, int64_t, int64_t, int64_t, void*, int) { abort(); } \
  void upfirdn2d(const UpfirdnWork&, int64_t, int64_t) { abort(); }                 \
  }
