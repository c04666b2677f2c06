// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
// Registers do not limit these kernels: their stages fill the shared memory of a multiprocessor first.
#pragma once

#define DECODE_ATTENTION_KERNELS(KERNEL)                                                                            \
  KERNEL(decode_64_f16, DecodeArgs, 128, 384, 168, kShared, decode<Float16, 64>)                                    \
  KERNEL(decode_64_bf16, DecodeArgs, 128, 384, 168, kShared, decode<BFloat16, 64>)                                  \
  KERNEL(decode_128_f16, DecodeArgs, 128, RESIDENT_OF_128, BY_MAJOR(168, 12, 255), kShared, decode<Float16, 128>)   \
  KERNEL(decode_128_bf16, DecodeArgs, 128, RESIDENT_OF_128, BY_MAJOR(168, 12, 255), kShared, decode<BFloat16, 128>) \
  KERNEL(decode_256_f16, DecodeArgs, 64, 192, 255, kShared256, decode<Float16, 256>)                                \
  KERNEL(decode_256_bf16, DecodeArgs, 64, 192, 255, kShared256, decode<BFloat16, 256>)                              \
  KERNEL(decode_narrow_f16, DecodeArgs, 128, RESIDENT_OF_128, BY_MAJOR(168, 12, 255), kShared,                      \
         decode<Float16, 128, 1>)                                                                                   \
  KERNEL(decode_narrow_bf16, DecodeArgs, 128, RESIDENT_OF_128, BY_MAJOR(168, 12, 255), kShared,                     \
         decode<BFloat16, 128, 1>)                                                                                  \
  KERNEL(decode_any, DecodeArgs, 128, 384, 168, kSharedAny, decode_any_types)                                       \
  KERNEL(merge_parts, DecodeArgs, 512, 1024, 64, 0, merge)
