// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

#define SOFTMAX_OF(f, T, NARROW, KERNEL)                                                                 \
  KERNEL(softmax_##f##_v4, ForwardArgs, V4_THREADS, V4_RESIDENT, 64, 0, forward_row<T, 4, false>)        \
  NARROW(KERNEL(softmax_##f##_v8, ForwardArgs, 512, 512, 128, 0, forward_row<T, 8, false>))              \
  KERNEL(softmax_##f##_causal_v4, ForwardArgs, V4_THREADS, V4_RESIDENT, 64, 0, forward_row<T, 4, true>)  \
  KERNEL(softmax_##f##_causal_v8, ForwardArgs, V8_THREADS, V8_THREADS, 128, 0, forward_row<T, 8, true>)  \
  KERNEL(softmax_##f##_any, ForwardArgs, 512, 1024, 64, 0, forward_any<T>)                               \
  KERNEL(softmax_##f##_shifted, ForwardArgs, 512, SHIFTED_RESIDENT, 96, 0, forward_shifted<T, 4>)        \
  NARROW(KERNEL(softmax_##f##_walk, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_walk<T, 4>)) \
  KERNEL(softmax_##f##_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<T, 8>)

#define SOFTMAX_KERNELS(KERNEL) PRECAST_DTYPES(SOFTMAX_OF, KERNEL)

#define SOFTMAX_BACKWARD_OF(f, T, NARROW, KERNEL)                                                \
  KERNEL(softmax_backward_##f##_v4, BackwardArgs, 512, 1024, 64, 0, backward_row<T, 4>)          \
  KERNEL(softmax_backward_##f##_any, BackwardArgs, 512, 1024, 64, 0, backward_any<T>)            \
  KERNEL(softmax_backward_##f##_shifted, BackwardArgs, 512, 512, 128, 0, backward_shifted<T, 4>) \
  KERNEL(softmax_backward_##f##_wide, BackwardArgs, 1024, 1024, 64, kMostClusterBytes, backward_wide<T, 4>)

#define SOFTMAX_BACKWARD_KERNELS(KERNEL) PRECAST_DTYPES(SOFTMAX_BACKWARD_OF, KERNEL)
