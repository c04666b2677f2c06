// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#define MOE_KERNELS(KERNEL)                                                                            \
  KERNEL(moe_permute, PermuteArgs, 512, 1024, 64, 0, permute)                                          \
  KERNEL(moe_permute_few, PermuteFewArgs, 128, 1024, 64, 0, permute_few)                               \
  KERNEL(moe_zero, ZeroArgs, 256, 1024, 64, 0, zero)                                                   \
  KERNEL(moe_repeat, RepeatArgs, 128, 1024, 64, 0, repeat)                                             \
  KERNEL(moe_combine_f32, CombineArgs, 512, 1024, 48, 0, combine_row<Float32>)                         \
  KERNEL(moe_combine_f16, CombineArgs, 512, 1024, 48, 0, combine_row<Float16>)                         \
  KERNEL(moe_combine_bf16, CombineArgs, 512, 1024, 48, 0, combine_row<BFloat16>)                       \
  KERNEL(moe_combine_any, CombineArgs, 512, 1024, 64, 0, combine_any)                                  \
  KERNEL(moe_combine_few_f32, CombineArgs, 64, 512, 128, 0, combine_few<Float32>)                      \
  KERNEL(moe_combine_few_f16, CombineArgs, 64, 512, 128, 0, combine_few<Float16>)                      \
  KERNEL(moe_combine_few_bf16, CombineArgs, 64, 512, 128, 0, combine_few<BFloat16>)                    \
  KERNEL(moe_combine_backward_f32, CombineBackwardArgs, 512, 1024, 64, 0, combine_backward<Float32>)   \
  KERNEL(moe_combine_backward_f16, CombineBackwardArgs, 512, 1024, 64, 0, combine_backward<Float16>)   \
  KERNEL(moe_combine_backward_bf16, CombineBackwardArgs, 512, 1024, 64, 0, combine_backward<BFloat16>) \
  KERNEL(moe_combine_backward_any, CombineBackwardArgs, 512, 1024, 64, 0, combine_backward_any)

#define MOE_ROUTING_KERNELS(KERNEL)                                              \
  KERNEL(moe_gate, GatingArgs, 128, 1024, 64, kGateSharedBytes, gate)            \
  KERNEL(moe_gate_backward, GatingBackwardArgs, 128, 1024, 64, 0, gate_backward) \
  KERNEL(moe_sort_count, SortArgs, 1024, 1024, 64, kSharedBytes, sort_count)     \
  KERNEL(moe_sort_scan, SortArgs, 1024, 1024, 64, 0, sort_scan)                  \
  KERNEL(moe_sort_place, SortArgs, 1024, 1024, 64, kSharedBytes, sort_place)
