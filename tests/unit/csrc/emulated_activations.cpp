// What the host code of the gated activations refers to beside what emulated_ops.cpp has: the CPU's own kernels, which
// are not under test here, and never called.
#include <stdlib.h>

#include "activations/cpu.h"

#define NO_CPU_LEVEL(level)                                         \
  namespace precast::activations::level {                           \
  void forward(const ForwardRows&, int64_t, int64_t) { abort(); }   \
  void backward(const BackwardRows&, int64_t, int64_t) { abort(); } \
  }
NO_CPU_LEVEL(baseline)
#if defined(__x86_64__)
NO_CPU_LEVEL(avx2)
NO_CPU_LEVEL(avx512)
#endif
