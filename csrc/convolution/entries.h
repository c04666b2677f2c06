// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

// How many threads of a kernel share a multiprocessor: fewer on Blackwell, for which NVRTC 12 spilled at the usual
// number.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define PRECAST_CONV_THREADS(usual, blackwell) blackwell
#else
#define PRECAST_CONV_THREADS(usual, blackwell) usual
#endif

#define CAUSAL_CONV1D_OF(f, T, NARROW, KERNEL)                                                                \
  KERNEL(causal_conv1d_##f##_w4, ForwardArgs, 128, PRECAST_CONV_THREADS(512, 384), BY_MAJOR(128, 10, 168), 0, \
         forward_walk<T, T::kPerVector, 4>)                                                                   \
  KERNEL(causal_conv1d_##f##_w8, ForwardArgs, 128, PRECAST_CONV_THREADS(512, 384), BY_MAJOR(128, 10, 168), 0, \
         forward_walk<T, 4, 8>)                                                                               \
  KERNEL(causal_conv1d_##f##_any, ForwardArgs, 128, PRECAST_CONV_THREADS(1024, 768), BY_MAJOR(64, 10, 80), 0, \
         forward_walk<T, 1, 8>)                                                                               \
  KERNEL(causal_conv1d_##f##_rows, ForwardArgs, 128, 1024, 64, 0, forward_rows<T, 4>)                         \
  KERNEL(causal_conv1d_##f##_rows_w8, ForwardArgs, 128, 1024, 64, 0, forward_rows<T, 8>)                      \
  KERNEL(causal_conv1d_update_##f##_w4, UpdateArgs, 128, 512, 128, 0, update<T, T::kPerVector, 4>)            \
  KERNEL(causal_conv1d_update_##f##_s3, UpdateArgs, 128, 512, 128, 0, update_rows<T, 3>)                      \
  KERNEL(causal_conv1d_update_##f##_s4, UpdateArgs, 128, 512, 128, 0, update_rows<T, 4>)                      \
  KERNEL(causal_conv1d_update_##f##_any, UpdateArgs, 128, 1024, 64, 0, update<T, 1, 8>)

#define CAUSAL_CONV1D_KERNELS(KERNEL) PRECAST_DTYPES(CAUSAL_CONV1D_OF, KERNEL)

#define CAUSAL_CONV1D_BACKWARD_OF(f, T, NARROW, KERNEL)                                                               \
  KERNEL(causal_conv1d_backward_##f##_w4, BackwardArgs, 128, PRECAST_PICK_##f(384, PRECAST_CONV_THREADS(512, 384)),   \
         PRECAST_PICK_##f(168, BY_MAJOR(128, 10, 168)), 0, backward_walk<T, 4, 4>)                                    \
  KERNEL(causal_conv1d_backward_##f##_w8, BackwardArgs, 128, 256, 224, 0, backward_walk<T, 4, 8>)                     \
  KERNEL(causal_conv1d_backward_##f##_rows, BackwardArgs, 128, PRECAST_CONV_THREADS(1024, 640), BY_MAJOR(64, 10, 96), \
         0, backward_rows<T>)                                                                                         \
  KERNEL(causal_conv1d_backward_##f##_any, BackwardArgs, 128, PRECAST_CONV_THREADS(768, 512), BY_MAJOR(80, 10, 128),  \
         0, backward_walk<T, 1, 8>)

#define CAUSAL_CONV1D_BACKWARD_KERNELS(KERNEL)      \
  PRECAST_DTYPES(CAUSAL_CONV1D_BACKWARD_OF, KERNEL) \
  KERNEL(causal_conv1d_backward_columns, ColumnArgs, 1024, 2048, 32, 0, parameter_columns)
