// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

#define SILU_AND_MUL_OF(f, T, NARROW, KERNEL)                                               \
  KERNEL(silu_and_mul_##f, ForwardArgs, 64, 2048, 32, 0, forward_vectors<T, Silu>)          \
  KERNEL(gelu_and_mul_##f, ForwardArgs, 64, 1536, 40, 0, forward_vectors<T, Gelu>)          \
  KERNEL(gelu_tanh_and_mul_##f, ForwardArgs, 64, 2048, 32, 0, forward_vectors<T, GeluTanh>) \
  KERNEL(gated_activation_##f##_others, ForwardArgs, 256, 1536, 40, 0, forward_others<T>)   \
  KERNEL(gated_activation_##f##_any, ForwardArgs, 64, 1024, 64, 0, forward_any<T>)          \
  KERNEL(gated_activation_##f##_shifted, ForwardArgs, 64, 1280, 64, 0, forward_shifted<T>)

#define ACTIVATIONS_KERNELS(KERNEL) PRECAST_DTYPES(SILU_AND_MUL_OF, KERNEL)

#define SILU_BACKWARD_OF(f, T, NARROW, KERNEL)                                                      \
  KERNEL(silu_backward_##f, BackwardArgs, 64, 1536, 40, 0, backward_vectors<T, SiluSlope>)          \
  KERNEL(gelu_backward_##f, BackwardArgs, 64, 1280, 48, 0, backward_vectors<T, GeluSlope>)          \
  KERNEL(gelu_tanh_backward_##f, BackwardArgs, 64, 1536, 40, 0, backward_vectors<T, GeluTanhSlope>) \
  KERNEL(gated_backward_##f##_others, BackwardArgs, 256, 1280, 48, 0, backward_others<T>)           \
  KERNEL(gated_backward_##f##_any, BackwardArgs, 64, 1024, 64, 0, backward_any<T>)                  \
  KERNEL(gated_backward_##f##_shifted, BackwardArgs, 64, 1024, 64, 0, backward_shifted<T>)

#define ACTIVATIONS_BACKWARD_KERNELS(KERNEL) PRECAST_DTYPES(SILU_BACKWARD_OF, KERNEL)
