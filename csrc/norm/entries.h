// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#define RMS_NORM_KERNELS(KERNEL)                                                                      \
  KERNEL(rms_norm_f32_v4, ForwardArgs, 640, 1280, 48, 0, forward_row<Float32, 4, false>)              \
  KERNEL(rms_norm_f32_any, ForwardArgs, 512, 1024, 64, 0, forward_any<Float32>)                       \
  KERNEL(add_rms_norm_f32_v1, ForwardArgs, 1024, 2048, 32, 0, forward_row<Float32, 1, true>)          \
  KERNEL(rms_norm_f32_shifted, ForwardArgs, 512, 1024, 64, 0, forward_shifted<Float32, 4>)            \
  KERNEL(rms_norm_f32_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<Float32, 4>) \
  KERNEL(rms_norm_f16_v4, ForwardArgs, 640, 1280, 48, 0, forward_row<Float16, 4, false>)              \
  KERNEL(rms_norm_f16_any, ForwardArgs, 512, 1024, 64, 0, forward_any<Float16>)                       \
  KERNEL(add_rms_norm_f16_v1, ForwardArgs, 1024, 2048, 32, 0, forward_row<Float16, 1, true>)          \
  KERNEL(rms_norm_f16_shifted, ForwardArgs, 512, 1024, 64, 0, forward_shifted<Float16, 4>)            \
  KERNEL(rms_norm_f16_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<Float16, 4>) \
  KERNEL(rms_norm_bf16_v4, ForwardArgs, 640, 1280, 48, 0, forward_row<BFloat16, 4, false>)            \
  KERNEL(rms_norm_bf16_any, ForwardArgs, 512, 1024, 64, 0, forward_any<BFloat16>)                     \
  KERNEL(add_rms_norm_bf16_v1, ForwardArgs, 1024, 2048, 32, 0, forward_row<BFloat16, 1, true>)        \
  KERNEL(rms_norm_bf16_shifted, ForwardArgs, 512, 1024, 64, 0, forward_shifted<BFloat16, 4>)          \
  KERNEL(rms_norm_bf16_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<BFloat16, 4>)

#define RMS_NORM_BACKWARD_KERNELS(KERNEL)                                                                          \
  KERNEL(rms_norm_backward_f32_v2, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<Float32, 2>)              \
  KERNEL(rms_norm_backward_f32_v2_pair, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<Float32, 2, true>)   \
  KERNEL(rms_norm_backward_f32_v4, BackwardArgs, 512, 512, 128, kRingBytes, backward_rows<Float32, 4>)             \
  KERNEL(rms_norm_backward_f32_v1, BackwardArgs, 512, 1024, 64, kRingBytes, backward_rows<Float32, 1>)             \
  KERNEL(rms_norm_backward_f32_any, BackwardArgs, 512, 512, 128, 0, backward_any<Float32>)                         \
  KERNEL(rms_norm_backward_f32_wide, BackwardArgs, 512, 512, 128, kRingBytes, backward_wide<Float32>)              \
  KERNEL(rms_norm_backward_f16_v2, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<Float16, 2>)              \
  KERNEL(rms_norm_backward_f16_v2_pair, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<Float16, 2, true>)   \
  KERNEL(rms_norm_backward_f16_v4, BackwardArgs, 512, 512, 128, kRingBytes, backward_rows<Float16, 4>)             \
  KERNEL(rms_norm_backward_f16_v1, BackwardArgs, 512, 1024, 64, kRingBytes, backward_rows<Float16, 1>)             \
  KERNEL(rms_norm_backward_f16_any, BackwardArgs, 512, 512, 128, 0, backward_any<Float16>)                         \
  KERNEL(rms_norm_backward_f16_wide, BackwardArgs, 512, 512, 128, kRingBytes, backward_wide<Float16>)              \
  KERNEL(rms_norm_backward_bf16_v2, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<BFloat16, 2>)            \
  KERNEL(rms_norm_backward_bf16_v2_pair, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<BFloat16, 2, true>) \
  KERNEL(rms_norm_backward_bf16_v4, BackwardArgs, 512, 512, 128, kRingBytes, backward_rows<BFloat16, 4>)           \
  KERNEL(rms_norm_backward_bf16_v1, BackwardArgs, 512, 1024, 64, kRingBytes, backward_rows<BFloat16, 1>)           \
  KERNEL(rms_norm_backward_bf16_any, BackwardArgs, 512, 512, 128, 0, backward_any<BFloat16>)                       \
  KERNEL(rms_norm_backward_bf16_wide, BackwardArgs, 512, 512, 128, kRingBytes, backward_wide<BFloat16>)            \
  KERNEL(rms_norm_backward_columns, ColumnArgs, 1024, 2048, 32, 0, grad_weight_columns)

#define LAYER_NORM_KERNELS(KERNEL)                                                                         \
  KERNEL(layer_norm_f32_v4, ForwardArgs, 512, 1024, 64, 0, forward_row<Float32, 4>)                        \
  KERNEL(layer_norm_f32_any, ForwardArgs, 512, 1024, 64, 0, forward_any<Float32>)                          \
  KERNEL(layer_norm_f32_shifted, ForwardArgs, 512, SHIFTED_RESIDENT, 80, 0, forward_shifted<Float32, 4>)   \
  KERNEL(layer_norm_f32_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<Float32, 4>)    \
  KERNEL(layer_norm_f16_v4, ForwardArgs, 512, 1024, 64, 0, forward_row<Float16, 4>)                        \
  KERNEL(layer_norm_f16_any, ForwardArgs, 512, 1024, 64, 0, forward_any<Float16>)                          \
  KERNEL(layer_norm_f16_shifted, ForwardArgs, 512, SHIFTED_RESIDENT, 80, 0, forward_shifted<Float16, 4>)   \
  KERNEL(layer_norm_f16_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<Float16, 4>)    \
  KERNEL(layer_norm_bf16_v4, ForwardArgs, 512, 1024, 64, 0, forward_row<BFloat16, 4>)                      \
  KERNEL(layer_norm_bf16_any, ForwardArgs, 512, 1024, 64, 0, forward_any<BFloat16>)                        \
  KERNEL(layer_norm_bf16_shifted, ForwardArgs, 512, SHIFTED_RESIDENT, 80, 0, forward_shifted<BFloat16, 4>) \
  KERNEL(layer_norm_bf16_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<BFloat16, 4>)

#define LAYER_NORM_BACKWARD_KERNELS(KERNEL)                                                                          \
  KERNEL(layer_norm_backward_f32_v2, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<Float32, 2>)              \
  KERNEL(layer_norm_backward_f32_v2_pair, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<Float32, 2, true>)   \
  KERNEL(layer_norm_backward_f32_v4, BackwardArgs, 512, 512, 128, kRingBytes, backward_rows<Float32, 4>)             \
  KERNEL(layer_norm_backward_f32_v1, BackwardArgs, 512, V1_RESIDENT, 96, kRingBytes, backward_rows<Float32, 1>)      \
  KERNEL(layer_norm_backward_f32_shifted, BackwardArgs, 512, 512, 128, kRingBytes, backward_shifted<Float32>)        \
  KERNEL(layer_norm_backward_f32_any, BackwardArgs, 512, 1024, 64, 0, backward_any<Float32>)                         \
  KERNEL(layer_norm_backward_f32_wide, BackwardArgs, 512, 512, 128, kRingBytes, backward_wide<Float32>)              \
  KERNEL(layer_norm_backward_f16_v2, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<Float16, 2>)              \
  KERNEL(layer_norm_backward_f16_v2_pair, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<Float16, 2, true>)   \
  KERNEL(layer_norm_backward_f16_v4, BackwardArgs, 512, 512, 128, kRingBytes, backward_rows<Float16, 4>)             \
  KERNEL(layer_norm_backward_f16_v1, BackwardArgs, 512, V1_RESIDENT, 96, kRingBytes, backward_rows<Float16, 1>)      \
  KERNEL(layer_norm_backward_f16_shifted, BackwardArgs, 512, 512, 128, kRingBytes, backward_shifted<Float16>)        \
  KERNEL(layer_norm_backward_f16_any, BackwardArgs, 512, 1024, 64, 0, backward_any<Float16>)                         \
  KERNEL(layer_norm_backward_f16_wide, BackwardArgs, 512, 512, 128, kRingBytes, backward_wide<Float16>)              \
  KERNEL(layer_norm_backward_bf16_v2, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<BFloat16, 2>)            \
  KERNEL(layer_norm_backward_bf16_v2_pair, BackwardArgs, 640, 640, 96, kRingBytes, backward_rows<BFloat16, 2, true>) \
  KERNEL(layer_norm_backward_bf16_v4, BackwardArgs, 512, 512, 128, kRingBytes, backward_rows<BFloat16, 4>)           \
  KERNEL(layer_norm_backward_bf16_v1, BackwardArgs, 512, V1_RESIDENT, 96, kRingBytes, backward_rows<BFloat16, 1>)    \
  KERNEL(layer_norm_backward_bf16_shifted, BackwardArgs, 512, 512, 128, kRingBytes, backward_shifted<BFloat16>)      \
  KERNEL(layer_norm_backward_bf16_any, BackwardArgs, 512, 1024, 64, 0, backward_any<BFloat16>)                       \
  KERNEL(layer_norm_backward_bf16_wide, BackwardArgs, 512, 512, 128, kRingBytes, backward_wide<BFloat16>)            \
  KERNEL(layer_norm_backward_columns, ColumnArgs, 1024, 2048, 32, 0, parameter_columns)
