// Softmax on the CPU: the interface between the host files, which handle tensors and threads, and cpu.cpp, which
// handles vectors. cpu.cpp is compiled once per CPU level and includes neither torch nor templates of the standard
// library.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"

namespace precast {
namespace softmax {

// One byte per column; not zero: masked. Rows are numbered through batch, head and query. A stride is 0 where the mask
// is shared.
struct MaskRows {
  const uint8_t* data;  // null: no mask
  int64_t batch;
  int64_t head;
  int64_t query;
};

// Rows are `columns` contiguous elements. Strides are in elements, from one row to the next. A causal row with query q
// holds the first q + 1 + diagonal columns. The other columns are not read, and their result is zero.
struct ForwardRows {
  const void* x;
  void* y;  // without gaps between rows
  MaskRows mask;
  int64_t rows;
  int64_t columns;
  int64_t queries;
  int64_t heads;
  int64_t diagonal;
  int64_t x_stride;
  float scale;
  float masked_value;
  int dtype;  // the number of a precast::DType
  bool causal;
  bool uniform;  // if all columns of a row are masked, the result is 1 / columns instead of 0
};

struct BackwardRows {
  const void* grad;
  const void* y;
  void* grad_x;  // without gaps between rows
  int64_t rows;
  int64_t columns;
  int64_t queries;
  int64_t diagonal;
  int64_t grad_stride;
  int64_t y_stride;
  float scale;
  int dtype;
  bool causal;
};

// Rows [begin, end).
using ForwardFunction = void (*)(const ForwardRows& rows, int64_t begin, int64_t end);
using BackwardFunction = void (*)(const BackwardRows& rows, int64_t begin, int64_t end);

PRECAST_CPU_FUNCTION(forward, (const ForwardRows& rows, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(backward, (const BackwardRows& rows, int64_t begin, int64_t end))

}  // namespace softmax
}  // namespace precast
