// Gating and the sums of rows on the CPU: the interface between the host files, which handle tensors and threads, and
// cpu.cpp, which handles vectors. cpu.cpp is compiled once per CPU level and includes neither torch nor templates of
// the standard library.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"

namespace precast {
namespace moe {

// Rows of logits. Strides are in elements, from one row to the next.
struct GateRows {
  const void* logits;
  const float* bias;  // null: none
  float* weights;
  int32_t* indices;
  int64_t stride;
  int64_t experts;
  int64_t k;
  int64_t groups;
  int64_t kept_groups;
  bool top_two;
  bool sigmoid;
  bool renormalize;
  float scale;
  int dtype;
};

struct GateBackwardRows {
  const float* grad;
  const void* logits;
  const int32_t* indices;
  void* result;
  int64_t stride;
  int64_t experts;
  int64_t k;
  bool sigmoid;
  bool renormalize;
  float scale;
  int dtype;
};

// The rows of each token: `k` positions per token, and no row where a position is not in [0, slots).
struct CombineRows {
  const void* rows;
  void* result;
  const int32_t* positions;
  const float* weights;  // null: all are 1
  int64_t stride;
  int64_t slots;
  int64_t width;
  int64_t k;
  int dtype;
};

struct CombineBackwardRows {
  const void* grad;
  const void* rows;
  void* grad_rows;
  float* grad_weights;
  const int32_t* positions;
  const float* weights;
  int64_t grad_stride;
  int64_t stride;
  int64_t slots;
  int64_t width;
  int64_t k;
  int dtype;
};

using GateFunction = void (*)(const GateRows&, int64_t begin, int64_t end);
using GateBackwardFunction = void (*)(const GateBackwardRows&, int64_t begin, int64_t end);
using CombineFunction = void (*)(const CombineRows&, int64_t begin, int64_t end);
using CombineBackwardFunction = void (*)(const CombineBackwardRows&, int64_t begin, int64_t end);

// The tokens [begin, end).
PRECAST_CPU_FUNCTION(gate, (const GateRows&, int64_t, int64_t))
PRECAST_CPU_FUNCTION(gate_backward, (const GateBackwardRows&, int64_t, int64_t))
PRECAST_CPU_FUNCTION(combine, (const CombineRows&, int64_t, int64_t))
PRECAST_CPU_FUNCTION(combine_backward, (const CombineBackwardRows&, int64_t, int64_t))

}  // namespace moe
}  // namespace precast
