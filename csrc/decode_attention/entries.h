// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
// Registers do not limit these kernels: their stages fill the shared memory of a multiprocessor first.
#pragma once

#include "../gpu/dtypes.h"

#define DECODE_64_OF(f, T, NARROW, KERNEL) KERNEL(decode_64_##f, DecodeArgs, 128, 384, 168, kShared, decode<T, 64>)

#define DECODE_128_OF(f, T, NARROW, KERNEL) \
  KERNEL(decode_128_##f, DecodeArgs, 128, RESIDENT_OF_128, BY_MAJOR(168, 12, 255), kShared, decode<T, 128>)

#define DECODE_256_OF(f, T, NARROW, KERNEL) KERNEL(decode_256_##f, DecodeArgs, 64, 192, 255, kShared256, decode<T, 256>)

#define DECODE_NARROW_OF(f, T, NARROW, KERNEL) \
  KERNEL(decode_narrow_##f, DecodeArgs, 128, RESIDENT_OF_128, BY_MAJOR(168, 12, 255), kShared, decode<T, 128, 1>)

#define DECODE_ATTENTION_KERNELS(KERNEL)                                      \
  PRECAST_NARROW_DTYPES(DECODE_64_OF, KERNEL)                                 \
  PRECAST_NARROW_DTYPES(DECODE_128_OF, KERNEL)                                \
  PRECAST_NARROW_DTYPES(DECODE_256_OF, KERNEL)                                \
  PRECAST_NARROW_DTYPES(DECODE_NARROW_OF, KERNEL)                             \
  KERNEL(decode_any, DecodeArgs, 128, 384, 168, kSharedAny, decode_any_types) \
  KERNEL(merge_parts, DecodeArgs, 512, 1024, 64, 0, merge)
