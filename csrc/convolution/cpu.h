// Causal convolutions on the CPU: the interface between host.cpp and backward.cpp, which handle tensors and threads,
// and cpu.cpp, which handles vectors and is compiled once per CPU level. Nothing here throws, allocates or starts
// threads.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"
#include "args.h"

namespace precast {
namespace causal_conv1d {

// Number i of a row, as a kernel on the CPU reads it.
static inline __attribute__((always_inline)) int64_t number_at(const Integers& from, int64_t i, int64_t row = 0) {
  const int64_t at = row * from.batch + i * from.stride;
  return from.is_long ? reinterpret_cast<const int64_t*>(from.data)[at]
                      : reinterpret_cast<const int32_t*>(from.data)[at];
}

// Tokens that are convolved together, and the numbers of the states before and after them, or -1.
struct Segment {
  int64_t row, begin, end, initial, final;
  bool padding;  // its results are zeros
};

// Channels are independent. A tile has kLanes of them, or one if tokens are neighbours in memory.
constexpr int64_t kTileChannels = 64;

struct Tiles {
  Walk walk;
  const Segment* segments;
  int64_t count;
  int dtype;  // the number of a precast::DType

  int64_t channels() const { return walk.along ? 1 : kTileChannels; }
  int64_t tiles() const { return (walk.channels + channels() - 1) / channels(); }
};

struct ForwardTiles {
  Tiles tiles;
  Lines y, final;
};

struct BackwardTiles {
  Tiles tiles;
  Lines grad, grad_final, grad_x, grad_initial;
  char* parameters;  // of weight, then of bias, in the dtype of the weight
};

// `slots` and `positions` have been checked.
struct UpdateTiles {
  UpdateArgs args;
  int64_t rows;
  int dtype;
};

PRECAST_CPU_FUNCTION(forward, (const ForwardTiles& work, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(backward, (const BackwardTiles& work, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(update, (const UpdateTiles& work, int64_t begin, int64_t end))

}  // namespace causal_conv1d
}  // namespace precast
