// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#define CROSS_ENTROPY_KERNELS(KERNEL)                                                                  \
  KERNEL(cross_entropy_f32_v4, LossArgs, 512, 1024, 64, 0, loss_row<Float32, 4>)                       \
  KERNEL(cross_entropy_f32_any, LossArgs, 512, 1024, 64, 0, loss_any<Float32>)                         \
  KERNEL(cross_entropy_f32_wide, LossArgs, 1024, 1024, 64, kMostClusterBytes, loss_wide<Float32, 8>)   \
  KERNEL(cross_entropy_f32_scale, ScaleArgs, 512, 2048, 32, 0, scale_row<Float32>)                     \
  KERNEL(cross_entropy_f16_v4, LossArgs, 512, 1024, 64, 0, loss_row<Float16, 4>)                       \
  KERNEL(cross_entropy_f16_any, LossArgs, 512, 1024, 64, 0, loss_any<Float16>)                         \
  KERNEL(cross_entropy_f16_wide, LossArgs, 1024, 1024, 64, kMostClusterBytes, loss_wide<Float16, 8>)   \
  KERNEL(cross_entropy_f16_scale, ScaleArgs, 512, 2048, 32, 0, scale_row<Float16>)                     \
  KERNEL(cross_entropy_bf16_v4, LossArgs, 512, 1024, 64, 0, loss_row<BFloat16, 4>)                     \
  KERNEL(cross_entropy_bf16_any, LossArgs, 512, 1024, 64, 0, loss_any<BFloat16>)                       \
  KERNEL(cross_entropy_bf16_wide, LossArgs, 1024, 1024, 64, kMostClusterBytes, loss_wide<BFloat16, 8>) \
  KERNEL(cross_entropy_bf16_scale, ScaleArgs, 512, 2048, 32, 0, scale_row<BFloat16>)
