// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

#define BIAS_ACT_OF(f, T, NARROW, KERNEL)                                \
  KERNEL(bias_act_##f, BiasActArgs, 256, 1024, 64, 0, vectors<T, false>) \
  KERNEL(bias_act_flat_##f, FlatArgs, 64, 1536, 40, 0, flat<T, false>)

#define BIAS_ACT_BACKWARD_OF(f, T, NARROW, KERNEL)                               \
  KERNEL(bias_act_backward_##f, BiasActArgs, 256, 1024, 64, 0, vectors<T, true>) \
  KERNEL(bias_act_backward_flat_##f, FlatArgs, 64, 1024, 64, 0, flat<T, true>)

#define BIAS_ACT_KERNELS(KERNEL)                                                      \
  PRECAST_DTYPES(BIAS_ACT_OF, KERNEL)                                                 \
  KERNEL(bias_act_any, BiasActArgs, 256, 1024, 64, 0, any<float, false>)              \
  KERNEL(bias_act_any_f64, BiasActArgs, 256, 1024, 64, 0, any<double, false>)         \
  PRECAST_DTYPES(BIAS_ACT_BACKWARD_OF, KERNEL)                                        \
  KERNEL(bias_act_backward_any, BiasActArgs, 256, 1024, 64, 0, any<float, true>)      \
  KERNEL(bias_act_backward_any_f64, BiasActArgs, 256, 1024, 64, 0, any<double, true>) \
  KERNEL(bias_act_sums, SumArgs, 1024, 2048, 32, 0, sum_lines<float>)                 \
  KERNEL(bias_act_sums_f64, SumArgs, 1024, 1024, 64, 0, sum_lines<double>)

#define UPFIRDN2D_OF(f, T, NARROW, KERNEL)                                                                 \
  KERNEL(upfirdn2d_##f, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<T, 1, 1>)      \
  KERNEL(upfirdn2d_up_##f, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<T, 2, 1>)   \
  KERNEL(upfirdn2d_down_##f, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<T, 1, 2>) \
  KERNEL(upfirdn2d_general_##f, UpfirdnArgs, 256, 1024, 64, 0, general<T>)

#define UPFIRDN2D_KERNELS(KERNEL)      \
  PRECAST_DTYPES(UPFIRDN2D_OF, KERNEL) \
  KERNEL(upfirdn2d_general_f64, UpfirdnArgs, 256, 1024, 64, 0, general<Float64>)
