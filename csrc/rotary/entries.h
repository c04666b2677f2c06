// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#define ROTARY_KERNELS(KERNEL)                                                                       \
  KERNEL(rotary_f32, RotaryArgs, 128, 1024, 64, 0, rotary_parts<Float32, 16>)                        \
  KERNEL(rotary_f32_8, RotaryArgs, 128, 1536, 40, 0, rotary_parts<Float32, 8>)                       \
  KERNEL(rotary_f32_any, RotaryArgs, 128, 1536, 40, 0, rotary_any<Float32>)                          \
  KERNEL(rotary_f16, RotaryArgs, 128, 1024, 64, 0, rotary_parts<Float16, 16>)                        \
  KERNEL(rotary_f16_8, RotaryArgs, 128, 1536, 40, 0, rotary_parts<Float16, 8>)                       \
  KERNEL(rotary_f16_4, RotaryArgs, 128, 1536, 40, 0, rotary_parts<Float16, 4>)                       \
  KERNEL(rotary_f16_any, RotaryArgs, 128, 1536, 40, 0, rotary_any<Float16>)                          \
  KERNEL(rotary_bf16, RotaryArgs, 128, 1024, 64, 0, rotary_parts<BFloat16, 16>)                      \
  KERNEL(rotary_bf16_8, RotaryArgs, 128, 1536, 40, 0, rotary_parts<BFloat16, 8>)                     \
  KERNEL(rotary_bf16_4, RotaryArgs, 128, 1536, 40, 0, rotary_parts<BFloat16, 4>)                     \
  KERNEL(rotary_bf16_any, RotaryArgs, 128, 1536, 40, 0, rotary_any<BFloat16>)                        \
  KERNEL(norm_rotary_f32, NormRotaryArgs, 128, 768, 80, 0, norm_rotary_vectors<Float32>)             \
  KERNEL(norm_rotary_f32_any, NormRotaryArgs, 128, 1024, 64, 0, norm_rotary_any<Float32>)            \
  KERNEL(norm_rotary_f16, NormRotaryArgs, 128, 768, 80, 0, norm_rotary_vectors<Float16>)             \
  KERNEL(norm_rotary_f16_any, NormRotaryArgs, 128, 1024, 64, 0, norm_rotary_any<Float16>)            \
  KERNEL(norm_rotary_bf16, NormRotaryArgs, 128, 768, 80, 0, norm_rotary_vectors<BFloat16>)           \
  KERNEL(norm_rotary_bf16_any, NormRotaryArgs, 128, 1024, 64, 0, norm_rotary_any<BFloat16>)          \
  KERNEL(norm_rotary_f16_each, NormRotaryArgs, 128, 1024, 64, 0, norm_rotary_vectors<Float16, true>) \
  KERNEL(norm_rotary_bf16_each, NormRotaryArgs, 128, 1024, 64, 0, norm_rotary_vectors<BFloat16, true>)
