// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

#define ROTARY_OF(f, T, NARROW, KERNEL)                                                     \
  KERNEL(rotary_##f, RotaryArgs, 128, 1024, 64, 0, rotary_parts<T, 16, 1>)                  \
  KERNEL(rotary_##f##_8, RotaryArgs, 128, 1536, 40, 0, rotary_parts<T, 8, 1>)               \
  NARROW(KERNEL(rotary_##f##_4, RotaryArgs, 128, 1536, 40, 0, rotary_parts<T, 4, 1>))       \
  NARROW(KERNEL(rotary_##f##_4_heads, RotaryArgs, 128, 1024, 64, 0, rotary_parts<T, 4, 4>)) \
  KERNEL(rotary_##f##_any, RotaryArgs, 128, 1536, 40, 0, rotary_any<T, 1>)                  \
  KERNEL(rotary_##f##_any_heads, RotaryArgs, 128, 1024, 64, 0, rotary_any<T, 4>)

#define NORM_ROTARY_OF(f, T, NARROW, KERNEL)                                        \
  KERNEL(norm_rotary_##f, NormRotaryArgs, 128, 1024, 64, 0, norm_rotary_vectors<T>) \
  KERNEL(norm_rotary_##f##_any, NormRotaryArgs, 128, 1024, 64, 0, norm_rotary_any<T, 4>)

#define NORM_ROTARY_EACH_OF(f, T, NARROW, KERNEL) \
  KERNEL(norm_rotary_##f##_each, NormRotaryArgs, 128, 1024, 64, 0, norm_rotary_vectors<T, true>)

#define ROTARY_KERNELS(KERNEL)           \
  PRECAST_DTYPES(ROTARY_OF, KERNEL)      \
  PRECAST_DTYPES(NORM_ROTARY_OF, KERNEL) \
  PRECAST_NARROW_DTYPES(NORM_ROTARY_EACH_OF, KERNEL)
