// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

#define RMS_NORM_OF(f, T, NARROW, KERNEL)                                                \
  KERNEL(rms_norm_##f##_v4, ForwardArgs, 640, 1280, 48, 0, forward_row<T, 4, false>)     \
  KERNEL(rms_norm_##f##_any, ForwardArgs, 512, 1024, 64, 0, forward_any<T>)              \
  KERNEL(add_rms_norm_##f##_v1, ForwardArgs, 1024, 2048, 32, 0, forward_row<T, 1, true>) \
  KERNEL(rms_norm_##f##_shifted, ForwardArgs, 512, 1024, 64, 0, forward_shifted<T, 4>)   \
  KERNEL(rms_norm_##f##_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<T, 4>)

#define RMS_NORM_KERNELS(KERNEL) PRECAST_DTYPES(RMS_NORM_OF, KERNEL)

#define RMS_NORM_BACKWARD_OF(f, T, NARROW, KERNEL)                                                           \
  KERNEL(rms_norm_backward_##f##_v2, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<T, 2>)            \
  KERNEL(rms_norm_backward_##f##_v2_pair, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<T, 2, true>) \
  KERNEL(rms_norm_backward_##f##_v4, BackwardArgs, 512, 512, 128, kRingBytes, backward_rows<T, 4>)           \
  KERNEL(rms_norm_backward_##f##_v1, BackwardArgs, 512, 1024, 64, kRingBytes, backward_rows<T, 1>)           \
  KERNEL(rms_norm_backward_##f##_shifted, BackwardArgs, 512, 512, 128, kRingBytes, backward_shifted<T>)      \
  KERNEL(rms_norm_backward_##f##_any, BackwardArgs, 512, 512, 128, 0, backward_any<T>)                       \
  KERNEL(rms_norm_backward_##f##_wide, BackwardArgs, 512, 512, 128, kRingBytes, backward_wide<T>)

#define RMS_NORM_BACKWARD_KERNELS(KERNEL)      \
  PRECAST_DTYPES(RMS_NORM_BACKWARD_OF, KERNEL) \
  KERNEL(rms_norm_backward_columns, ColumnArgs, 1024, 2048, 32, 0, grad_weight_columns)

#define LAYER_NORM_OF(f, T, NARROW, KERNEL)                                                          \
  KERNEL(layer_norm_##f##_v4, ForwardArgs, 512, 1024, 64, 0, forward_row<T, 4>)                      \
  KERNEL(layer_norm_##f##_any, ForwardArgs, 512, 1024, 64, 0, forward_any<T>)                        \
  KERNEL(layer_norm_##f##_shifted, ForwardArgs, 512, SHIFTED_RESIDENT, 80, 0, forward_shifted<T, 4>) \
  KERNEL(layer_norm_##f##_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<T, 4>)

#define LAYER_NORM_KERNELS(KERNEL) PRECAST_DTYPES(LAYER_NORM_OF, KERNEL)

#define LAYER_NORM_BACKWARD_OF(f, T, NARROW, KERNEL)                                                           \
  KERNEL(layer_norm_backward_##f##_v2, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<T, 2>)            \
  KERNEL(layer_norm_backward_##f##_v2_pair, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<T, 2, true>) \
  KERNEL(layer_norm_backward_##f##_v4, BackwardArgs, 512, 512, 128, kRingBytes, backward_rows<T, 4>)           \
  KERNEL(layer_norm_backward_##f##_v1, BackwardArgs, 512, V1_RESIDENT, 96, kRingBytes, backward_rows<T, 1>)    \
  KERNEL(layer_norm_backward_##f##_shifted, BackwardArgs, 512, 512, 128, kRingBytes, backward_shifted<T>)      \
  KERNEL(layer_norm_backward_##f##_any, BackwardArgs, 512, 1024, 64, 0, backward_any<T>)                       \
  KERNEL(layer_norm_backward_##f##_wide, BackwardArgs, 512, 512, 128, kRingBytes, backward_wide<T>)

#define LAYER_NORM_BACKWARD_KERNELS(KERNEL)      \
  PRECAST_DTYPES(LAYER_NORM_BACKWARD_OF, KERNEL) \
  KERNEL(layer_norm_backward_columns, ColumnArgs, 1024, 2048, 32, 0, parameter_columns)

#define GATED_NORM_OF(f, T, NARROW, KERNEL)                                   \
  KERNEL(gated_norm_##f##_v1, ForwardArgs, 1024, 1024, 64, 0, forward_row<T>) \
  KERNEL(gated_norm_##f##_any, ForwardArgs, 512, 1024, 64, 0, forward_any<T>)

#define RMS_NORM_GATED_KERNELS(KERNEL) PRECAST_DTYPES(GATED_NORM_OF, KERNEL)

#define GATED_NORM_BACKWARD_OF(f, T, NARROW, KERNEL)                                    \
  KERNEL(gated_norm_backward_##f##_v1, BackwardArgs, 512, 768, 80, 0, backward_rows<T>) \
  KERNEL(gated_norm_backward_##f##_any, BackwardArgs, 512, 1024, 64, 0, backward_any<T>)

#define RMS_NORM_GATED_BACKWARD_KERNELS(KERNEL)  \
  PRECAST_DTYPES(GATED_NORM_BACKWARD_OF, KERNEL) \
  KERNEL(gated_norm_backward_columns, ColumnArgs, 1024, 2048, 32, 0, gated_weight_columns)
