// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#define SOFTMAX_KERNELS(KERNEL)                                                                               \
  KERNEL(softmax_f32_v4, ForwardArgs, V4_THREADS, V4_RESIDENT, 64, 0, forward_row<Float32, 4, false>)         \
  KERNEL(softmax_f32_causal_v4, ForwardArgs, V4_THREADS, V4_RESIDENT, 64, 0, forward_row<Float32, 4, true>)   \
  KERNEL(softmax_f32_causal_v8, ForwardArgs, V8_THREADS, V8_THREADS, 128, 0, forward_row<Float32, 8, true>)   \
  KERNEL(softmax_f32_any, ForwardArgs, 512, 1024, 64, 0, forward_any<Float32>)                                \
  KERNEL(softmax_f32_shifted, ForwardArgs, 512, SHIFTED_RESIDENT, 96, 0, forward_shifted<Float32, 4>)         \
  KERNEL(softmax_f32_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<Float32, 8>)          \
  KERNEL(softmax_f16_v4, ForwardArgs, V4_THREADS, V4_RESIDENT, 64, 0, forward_row<Float16, 4, false>)         \
  KERNEL(softmax_f16_v8, ForwardArgs, 512, 512, 128, 0, forward_row<Float16, 8, false>)                       \
  KERNEL(softmax_f16_causal_v4, ForwardArgs, V4_THREADS, V4_RESIDENT, 64, 0, forward_row<Float16, 4, true>)   \
  KERNEL(softmax_f16_causal_v8, ForwardArgs, V8_THREADS, V8_THREADS, 128, 0, forward_row<Float16, 8, true>)   \
  KERNEL(softmax_f16_any, ForwardArgs, 512, 1024, 64, 0, forward_any<Float16>)                                \
  KERNEL(softmax_f16_shifted, ForwardArgs, 512, SHIFTED_RESIDENT, 96, 0, forward_shifted<Float16, 4>)         \
  KERNEL(softmax_f16_walk, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_walk<Float16, 4>)          \
  KERNEL(softmax_f16_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<Float16, 8>)          \
  KERNEL(softmax_bf16_v4, ForwardArgs, V4_THREADS, V4_RESIDENT, 64, 0, forward_row<BFloat16, 4, false>)       \
  KERNEL(softmax_bf16_v8, ForwardArgs, 512, 512, 128, 0, forward_row<BFloat16, 8, false>)                     \
  KERNEL(softmax_bf16_causal_v4, ForwardArgs, V4_THREADS, V4_RESIDENT, 64, 0, forward_row<BFloat16, 4, true>) \
  KERNEL(softmax_bf16_causal_v8, ForwardArgs, V8_THREADS, V8_THREADS, 128, 0, forward_row<BFloat16, 8, true>) \
  KERNEL(softmax_bf16_any, ForwardArgs, 512, 1024, 64, 0, forward_any<BFloat16>)                              \
  KERNEL(softmax_bf16_shifted, ForwardArgs, 512, SHIFTED_RESIDENT, 96, 0, forward_shifted<BFloat16, 4>)       \
  KERNEL(softmax_bf16_walk, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_walk<BFloat16, 4>)        \
  KERNEL(softmax_bf16_wide, ForwardArgs, 1024, 1024, 64, kMostClusterBytes, forward_wide<BFloat16, 8>)

#define SOFTMAX_BACKWARD_KERNELS(KERNEL)                                                                        \
  KERNEL(softmax_backward_f32_v4, BackwardArgs, 512, 1024, 64, 0, backward_row<Float32, 4>)                     \
  KERNEL(softmax_backward_f32_any, BackwardArgs, 512, 1024, 64, 0, backward_any<Float32>)                       \
  KERNEL(softmax_backward_f32_shifted, BackwardArgs, 512, 512, 128, 0, backward_shifted<Float32, 4>)            \
  KERNEL(softmax_backward_f32_wide, BackwardArgs, 1024, 1024, 64, kMostClusterBytes, backward_wide<Float32, 4>) \
  KERNEL(softmax_backward_f16_v4, BackwardArgs, 512, 1024, 64, 0, backward_row<Float16, 4>)                     \
  KERNEL(softmax_backward_f16_any, BackwardArgs, 512, 1024, 64, 0, backward_any<Float16>)                       \
  KERNEL(softmax_backward_f16_shifted, BackwardArgs, 512, 512, 128, 0, backward_shifted<Float16, 4>)            \
  KERNEL(softmax_backward_f16_wide, BackwardArgs, 1024, 1024, 64, kMostClusterBytes, backward_wide<Float16, 4>) \
  KERNEL(softmax_backward_bf16_v4, BackwardArgs, 512, 1024, 64, 0, backward_row<BFloat16, 4>)                   \
  KERNEL(softmax_backward_bf16_any, BackwardArgs, 512, 1024, 64, 0, backward_any<BFloat16>)                     \
  KERNEL(softmax_backward_bf16_shifted, BackwardArgs, 512, 512, 128, 0, backward_shifted<BFloat16, 4>)          \
  KERNEL(softmax_backward_bf16_wide, BackwardArgs, 1024, 1024, 64, kMostClusterBytes, backward_wide<BFloat16, 4>)
