// The entry points of the image ops.
#pragma once

#include "../common/device.cuh"
#include "args.h"

// `resident` is the number of threads that a multiprocessor should hold at a time. It sets the budget: 65536 / resident
// registers per thread.
#define KERNEL(name, Args, threads, resident, ...)                                         \
  extern "C" __global__ void __launch_bounds__(threads, PRECAST_BLOCKS(threads, resident)) \
      name(const precast::image::Args a) {                                                 \
    using namespace precast;                                                               \
    using namespace precast::image;                                                        \
    __VA_ARGS__(a);                                                                        \
  }
