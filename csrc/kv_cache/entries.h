// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

#define ROTARY_AND_CACHE_OF(f, T, NARROW, KERNEL)                                                         \
  KERNEL(rotary_and_cache_##f, RotateArgs, 128, 1024, 64, 0, rotate_and_cache<T, PRECAST_PICK_##f(4, 8)>) \
  KERNEL(rotary_and_cache_##f##_any, RotateArgs, 128, 1024, 64, 0, rotate_and_cache<T, 1>)

#define NORM_ROTARY_AND_CACHE_OF(f, T, NARROW, KERNEL)                                                            \
  KERNEL(norm_rotary_and_cache_##f, NormRotateArgs, 128, PRECAST_PICK_##f(768, 640), PRECAST_PICK_##f(80, 96), 0, \
         norm_rotate_and_cache<T>)                                                                                \
  KERNEL(norm_rotary_and_cache_##f##_any, NormRotateArgs, 128, 1024, 64, 0, norm_rotate_and_cache_any<T>)

#define NORM_ROTARY_AND_CACHE_EACH_OF(f, T, NARROW, KERNEL) \
  KERNEL(norm_rotary_and_cache_##f##_each, NormRotateArgs, 128, 1024, 64, 0, norm_rotate_and_cache<T, true>)

#define KV_CACHE_KERNELS(KERNEL)                                    \
  KERNEL(reshape_and_cache, CopyArgs, 256, 1024, 64, 0, copy_units) \
  PRECAST_DTYPES(ROTARY_AND_CACHE_OF, KERNEL)                       \
  PRECAST_DTYPES(NORM_ROTARY_AND_CACHE_OF, KERNEL)                  \
  PRECAST_NARROW_DTYPES(NORM_ROTARY_AND_CACHE_EACH_OF, KERNEL)
