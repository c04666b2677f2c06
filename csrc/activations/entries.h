// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#define ACTIVATIONS_KERNELS(KERNEL)                                                                 \
  KERNEL(silu_and_mul_f32, ForwardArgs, 64, 2048, 32, 0, forward_vectors<Float32, Silu>)            \
  KERNEL(gelu_and_mul_f32, ForwardArgs, 64, 1536, 40, 0, forward_vectors<Float32, Gelu>)            \
  KERNEL(gelu_tanh_and_mul_f32, ForwardArgs, 64, 2048, 32, 0, forward_vectors<Float32, GeluTanh>)   \
  KERNEL(gated_activation_f32_others, ForwardArgs, 256, 1536, 40, 0, forward_others<Float32>)       \
  KERNEL(gated_activation_f32_any, ForwardArgs, 64, 1024, 64, 0, forward_any<Float32>)              \
  KERNEL(gated_activation_f32_shifted, ForwardArgs, 64, 1280, 64, 0, forward_shifted<Float32>)      \
  KERNEL(silu_and_mul_f16, ForwardArgs, 64, 2048, 32, 0, forward_vectors<Float16, Silu>)            \
  KERNEL(gelu_and_mul_f16, ForwardArgs, 64, 1536, 40, 0, forward_vectors<Float16, Gelu>)            \
  KERNEL(gelu_tanh_and_mul_f16, ForwardArgs, 64, 2048, 32, 0, forward_vectors<Float16, GeluTanh>)   \
  KERNEL(gated_activation_f16_others, ForwardArgs, 256, 1536, 40, 0, forward_others<Float16>)       \
  KERNEL(gated_activation_f16_any, ForwardArgs, 64, 1024, 64, 0, forward_any<Float16>)              \
  KERNEL(gated_activation_f16_shifted, ForwardArgs, 64, 1280, 64, 0, forward_shifted<Float16>)      \
  KERNEL(silu_and_mul_bf16, ForwardArgs, 64, 2048, 32, 0, forward_vectors<BFloat16, Silu>)          \
  KERNEL(gelu_and_mul_bf16, ForwardArgs, 64, 1536, 40, 0, forward_vectors<BFloat16, Gelu>)          \
  KERNEL(gelu_tanh_and_mul_bf16, ForwardArgs, 64, 2048, 32, 0, forward_vectors<BFloat16, GeluTanh>) \
  KERNEL(gated_activation_bf16_others, ForwardArgs, 256, 1536, 40, 0, forward_others<BFloat16>)     \
  KERNEL(gated_activation_bf16_any, ForwardArgs, 64, 1024, 64, 0, forward_any<BFloat16>)            \
  KERNEL(gated_activation_bf16_shifted, ForwardArgs, 64, 1280, 64, 0, forward_shifted<BFloat16>)

#define ACTIVATIONS_BACKWARD_KERNELS(KERNEL)                                                                \
  KERNEL(silu_backward_f32, BackwardArgs, 64, 1536, 40, 0, backward_vectors<Float32, SiluSlope>)            \
  KERNEL(gelu_backward_f32, BackwardArgs, 64, 1280, 48, 0, backward_vectors<Float32, GeluSlope>)            \
  KERNEL(gelu_tanh_backward_f32, BackwardArgs, 64, 1536, 40, 0, backward_vectors<Float32, GeluTanhSlope>)   \
  KERNEL(gated_backward_f32_others, BackwardArgs, 256, 1280, 48, 0, backward_others<Float32>)               \
  KERNEL(gated_backward_f32_any, BackwardArgs, 64, 1024, 64, 0, backward_any<Float32>)                      \
  KERNEL(gated_backward_f32_shifted, BackwardArgs, 64, 1024, 64, 0, backward_shifted<Float32>)              \
  KERNEL(silu_backward_f16, BackwardArgs, 64, 1536, 40, 0, backward_vectors<Float16, SiluSlope>)            \
  KERNEL(gelu_backward_f16, BackwardArgs, 64, 1280, 48, 0, backward_vectors<Float16, GeluSlope>)            \
  KERNEL(gelu_tanh_backward_f16, BackwardArgs, 64, 1536, 40, 0, backward_vectors<Float16, GeluTanhSlope>)   \
  KERNEL(gated_backward_f16_others, BackwardArgs, 256, 1280, 48, 0, backward_others<Float16>)               \
  KERNEL(gated_backward_f16_any, BackwardArgs, 64, 1024, 64, 0, backward_any<Float16>)                      \
  KERNEL(gated_backward_f16_shifted, BackwardArgs, 64, 1024, 64, 0, backward_shifted<Float16>)              \
  KERNEL(silu_backward_bf16, BackwardArgs, 64, 1536, 40, 0, backward_vectors<BFloat16, SiluSlope>)          \
  KERNEL(gelu_backward_bf16, BackwardArgs, 64, 1280, 48, 0, backward_vectors<BFloat16, GeluSlope>)          \
  KERNEL(gelu_tanh_backward_bf16, BackwardArgs, 64, 1536, 40, 0, backward_vectors<BFloat16, GeluTanhSlope>) \
  KERNEL(gated_backward_bf16_others, BackwardArgs, 256, 1280, 48, 0, backward_others<BFloat16>)             \
  KERNEL(gated_backward_bf16_any, BackwardArgs, 64, 1024, 64, 0, backward_any<BFloat16>)                    \
  KERNEL(gated_backward_bf16_shifted, BackwardArgs, 64, 1024, 64, 0, backward_shifted<BFloat16>)
