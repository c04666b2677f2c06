// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#define BIAS_ACT_KERNELS(KERNEL)                                                         \
  KERNEL(bias_act_f32, BiasActArgs, 256, 1024, 64, 0, vectors<Float32, false>)           \
  KERNEL(bias_act_f16, BiasActArgs, 256, 1024, 64, 0, vectors<Float16, false>)           \
  KERNEL(bias_act_bf16, BiasActArgs, 256, 1024, 64, 0, vectors<BFloat16, false>)         \
  KERNEL(bias_act_any, BiasActArgs, 256, 1024, 64, 0, any<float, false>)                 \
  KERNEL(bias_act_any_f64, BiasActArgs, 256, 1024, 64, 0, any<double, false>)            \
  KERNEL(bias_act_backward_f32, BiasActArgs, 256, 1024, 64, 0, vectors<Float32, true>)   \
  KERNEL(bias_act_backward_f16, BiasActArgs, 256, 1024, 64, 0, vectors<Float16, true>)   \
  KERNEL(bias_act_backward_bf16, BiasActArgs, 256, 1024, 64, 0, vectors<BFloat16, true>) \
  KERNEL(bias_act_backward_any, BiasActArgs, 256, 1024, 64, 0, any<float, true>)         \
  KERNEL(bias_act_backward_any_f64, BiasActArgs, 256, 1024, 64, 0, any<double, true>)    \
  KERNEL(bias_act_sums, SumArgs, 1024, 2048, 32, 0, sum_lines<float>)                    \
  KERNEL(bias_act_sums_f64, SumArgs, 1024, 1024, 64, 0, sum_lines<double>)

#define UPFIRDN2D_KERNELS(KERNEL)                                                                                  \
  KERNEL(upfirdn2d_f32, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<Float32, 1, 1>)        \
  KERNEL(upfirdn2d_up_f32, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<Float32, 2, 1>)     \
  KERNEL(upfirdn2d_down_f32, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<Float32, 1, 2>)   \
  KERNEL(upfirdn2d_general_f32, UpfirdnArgs, 256, 1024, 64, 0, general<Float32>)                                   \
  KERNEL(upfirdn2d_f16, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<Float16, 1, 1>)        \
  KERNEL(upfirdn2d_up_f16, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<Float16, 2, 1>)     \
  KERNEL(upfirdn2d_down_f16, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<Float16, 1, 2>)   \
  KERNEL(upfirdn2d_general_f16, UpfirdnArgs, 256, 1024, 64, 0, general<Float16>)                                   \
  KERNEL(upfirdn2d_bf16, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<BFloat16, 1, 1>)      \
  KERNEL(upfirdn2d_up_bf16, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<BFloat16, 2, 1>)   \
  KERNEL(upfirdn2d_down_bf16, UpfirdnArgs, 128, STRIPS_RESIDENT, BY_MAJOR(80, 10, 128), 0, strips<BFloat16, 1, 2>) \
  KERNEL(upfirdn2d_general_bf16, UpfirdnArgs, 256, 1024, 64, 0, general<BFloat16>)                                 \
  KERNEL(upfirdn2d_general_f64, UpfirdnArgs, 256, 1024, 64, 0, general<Float64>)
