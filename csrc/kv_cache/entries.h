// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#define KV_CACHE_KERNELS(KERNEL)                                                                                 \
  KERNEL(reshape_and_cache, CopyArgs, 256, 1024, 64, 0, copy_units)                                              \
  KERNEL(rotary_and_cache_f32, RotateArgs, 128, 1024, 64, 0, rotate_and_cache<Float32, 4>)                       \
  KERNEL(rotary_and_cache_f32_any, RotateArgs, 128, 1024, 64, 0, rotate_and_cache<Float32, 1>)                   \
  KERNEL(rotary_and_cache_f16, RotateArgs, 128, 1024, 64, 0, rotate_and_cache<Float16, 8>)                       \
  KERNEL(rotary_and_cache_f16_any, RotateArgs, 128, 1024, 64, 0, rotate_and_cache<Float16, 1>)                   \
  KERNEL(rotary_and_cache_bf16, RotateArgs, 128, 1024, 64, 0, rotate_and_cache<BFloat16, 8>)                     \
  KERNEL(rotary_and_cache_bf16_any, RotateArgs, 128, 1024, 64, 0, rotate_and_cache<BFloat16, 1>)                 \
  KERNEL(norm_rotary_and_cache_f32, NormRotateArgs, 128, 768, 80, 0, norm_rotate_and_cache<Float32>)             \
  KERNEL(norm_rotary_and_cache_f32_any, NormRotateArgs, 128, 1024, 64, 0, norm_rotate_and_cache_any<Float32>)    \
  KERNEL(norm_rotary_and_cache_f16, NormRotateArgs, 128, 640, 96, 0, norm_rotate_and_cache<Float16>)             \
  KERNEL(norm_rotary_and_cache_f16_any, NormRotateArgs, 128, 1024, 64, 0, norm_rotate_and_cache_any<Float16>)    \
  KERNEL(norm_rotary_and_cache_bf16, NormRotateArgs, 128, 640, 96, 0, norm_rotate_and_cache<BFloat16>)           \
  KERNEL(norm_rotary_and_cache_bf16_any, NormRotateArgs, 128, 1024, 64, 0, norm_rotate_and_cache_any<BFloat16>)  \
  KERNEL(norm_rotary_and_cache_f16_each, NormRotateArgs, 128, 1024, 64, 0, norm_rotate_and_cache<Float16, true>) \
  KERNEL(norm_rotary_and_cache_bf16_each, NormRotateArgs, 128, 1024, 64, 0, norm_rotate_and_cache<BFloat16, true>)
