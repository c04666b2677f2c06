// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

#define MOE_COMBINE_OF(f, T, NARROW, KERNEL) KERNEL(moe_combine_##f, CombineArgs, 512, 1024, 48, 0, combine_row<T>)

#define MOE_COMBINE_FEW_OF(f, T, NARROW, KERNEL) \
  KERNEL(moe_combine_few_##f, CombineArgs, 64, 512, 128, 0, combine_few<T>)

#define MOE_COMBINE_BACKWARD_OF(f, T, NARROW, KERNEL) \
  KERNEL(moe_combine_backward_##f, CombineBackwardArgs, 512, 1024, 64, 0, combine_backward<T>)

#define MOE_KERNELS(KERNEL)                                              \
  KERNEL(moe_permute, PermuteArgs, 512, 1024, 64, 0, permute)            \
  KERNEL(moe_permute_few, PermuteFewArgs, 512, 1024, 64, 0, permute_few) \
  KERNEL(moe_zero, ZeroArgs, 256, 1024, 64, 0, zero)                     \
  KERNEL(moe_repeat, RepeatArgs, 128, 1024, 64, 0, repeat)               \
  PRECAST_DTYPES(MOE_COMBINE_OF, KERNEL)                                 \
  KERNEL(moe_combine_any, CombineArgs, 512, 1024, 64, 0, combine_any)    \
  PRECAST_DTYPES(MOE_COMBINE_FEW_OF, KERNEL)                             \
  PRECAST_DTYPES(MOE_COMBINE_BACKWARD_OF, KERNEL)                        \
  KERNEL(moe_combine_backward_any, CombineBackwardArgs, 512, 1024, 64, 0, combine_backward_any)

#define MOE_ROUTING_KERNELS(KERNEL)                                              \
  KERNEL(moe_gate, GatingArgs, 128, 1024, 64, kGateSharedBytes, gate)            \
  KERNEL(moe_gate_backward, GatingBackwardArgs, 128, 1024, 64, 0, gate_backward) \
  KERNEL(moe_sort_count, SortArgs, 1024, 1024, 64, kSharedBytes, sort_count)     \
  KERNEL(moe_sort_scan, SortArgs, 1024, 1024, 64, 0, sort_scan)                  \
  KERNEL(moe_sort_place, SortArgs, 1024, 1024, 64, kSharedBytes, sort_place)
