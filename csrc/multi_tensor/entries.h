// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#define MULTI_TENSOR_KERNELS(KERNEL)                                                                 \
  KERNEL(multi_tensor_prepare, PrepareArgs, 128, 512, 128, 0, prepare_all)                           \
  KERNEL(multi_tensor_update, UpdateArgs, 128, 640, 96, 0, update_all<kAny>)                         \
  KERNEL(multi_tensor_lamb, UpdateArgs, 128, 640, 96, 0, update_all<kOfLamb>)                        \
  KERNEL(multi_tensor_adam, UpdateArgs, 128, 1024, 64, 0, update_all<kPlainAdam>)                    \
  KERNEL(multi_tensor_adam_masters, UpdateArgs, 128, kMasterThreads, 64, 0, update_all<kMasterAdam>) \
  KERNEL(multi_tensor_others, UpdateArgs, 128, 1024, 64, 0, update_all<kPlainOthers>)                \
  KERNEL(multi_tensor_norm_parts, UpdateArgs, 128, 1280, 48, 0, norm_parts)                          \
  KERNEL(multi_tensor_sum_each, SumArgs, 512, 1024, 64, 0, sum_each)                                 \
  KERNEL(multi_tensor_sum_total, SumArgs, 512, 1024, 64, 0, sum_total)                               \
  KERNEL(multi_tensor_axpby, AxpbyArgs, 128, 1280, 48, 0, axpby_all)
