// For emulated_ops.cpp: what the host files of the convolutions link to, without the kernels.
#pragma once

#include <stdlib.h>

#include "convolution/cpu.h"

#define NO_CPU_LEVEL(level)                                          \
  namespace causal_conv1d::level {                                   \
  void forward(const ForwardTiles&, int64_t, int64_t) { abort(); }   \
  void backward(const BackwardTiles&, int64_t, int64_t) { abort(); } \
  void update(const UpdateTiles&, int64_t, int64_t) { abort(); }     \
  }
