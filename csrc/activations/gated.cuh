// Shared by forward and backward on the GPU.
#pragma once

#include "../common/shifted.cuh"
#include "args.h"

namespace precast {
namespace activations {

struct Place {
  i64 row;
  u32 column;  // in units
};

DEVICE Place place_of(u32 index, const Units& units) {
  const u32 row = quotient(index, units.columns);
  return {static_cast<i64>(row), index - row * units.columns.divisor};
}

}  // namespace activations
}  // namespace precast

// An entry point for blocks of 64 threads. `resident` is the number of threads that a multiprocessor should hold at a
// time. It sets the budget: 65536 / resident registers per thread.
#define KERNEL(name, Args, threads, resident, ...)                                         \
  extern "C" __global__ void __launch_bounds__(threads, PRECAST_BLOCKS(threads, resident)) \
      name(const precast::activations::Args a) {                                           \
    using namespace precast;                                                               \
    using namespace precast::activations;                                                  \
    __VA_ARGS__(a);                                                                        \
  }
