// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

#define CROSS_ENTROPY_OF(f, T, NARROW, KERNEL)                                                   \
  KERNEL(cross_entropy_##f##_v4, LossArgs, 512, 1024, 64, 0, loss_row<T, 4>)                     \
  KERNEL(cross_entropy_##f##_shifted, LossArgs, 512, 1024, 64, 0, loss_row<T, 4, true>)          \
  KERNEL(cross_entropy_##f##_any, LossArgs, 512, 1024, 64, 0, loss_any<T>)                       \
  KERNEL(cross_entropy_##f##_wide, LossArgs, 1024, 1024, 64, kMostClusterBytes, loss_wide<T, 8>) \
  KERNEL(cross_entropy_##f##_scale, ScaleArgs, 512, 2048, 32, 0, scale_row<T>)

#define CROSS_ENTROPY_KERNELS(KERNEL) PRECAST_DTYPES(CROSS_ENTROPY_OF, KERNEL)
