// Cross entropy on the CPU: the interface between host.cpp, which handles tensors and threads, and cpu.cpp, which
// handles vectors. cpu.cpp is compiled once per CPU level and includes neither torch nor templates of the standard
// library.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"

namespace precast {
namespace losses {

// Rows are `columns` contiguous elements. Strides are in elements, from one row to the next. args.h has the formulas.
struct LossRows {
  const void* x;
  void* grad;            // null: only the losses are computed; may be x
  const void* target;    // a 64-bit integer per row, or a 32-bit one
  const float* weight;   // null: all are 1
  const float* factors;  // the scale of each row, `factor_step` apart; null: 1
  const float* sum;      // of the weights, if they and the scales are there
  const float* given;    // lse, share, spread and pull of each row, `rows` apart; null: from the row itself
  float* losses;
  float* lse;
  int64_t rows;
  int64_t columns;
  int64_t x_stride;
  int64_t grad_stride;
  int64_t ignore_index;
  int64_t factor_step;  // 0 if one scale serves all rows
  float smoothing;
  float z_loss;
  int dtype;  // the number of a precast::DType
  bool narrow_target;
};

struct ScaleRows {
  void* grad;
  const float* factor;
  int64_t rows;
  int64_t columns;
  int64_t grad_stride;
  int64_t factor_step;  // 0 if one factor serves all rows
  int dtype;
};

inline int64_t target_at(const void* target, bool narrow, int64_t row) {
  return narrow ? static_cast<const int32_t*>(target)[row] : static_cast<const int64_t*>(target)[row];
}

// Rows [begin, end).
using LossFunction = void (*)(const LossRows& rows, int64_t begin, int64_t end);
using ScaleFunction = void (*)(const ScaleRows& rows, int64_t begin, int64_t end);

PRECAST_CPU_FUNCTION(losses, (const LossRows& rows, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(scale_rows, (const ScaleRows& rows, int64_t begin, int64_t end))

}  // namespace losses
}  // namespace precast
