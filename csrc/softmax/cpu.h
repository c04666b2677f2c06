// Softmax on the CPU: the seam between the host files, which know tensors and threads, and cpu.cpp, which knows
// vectors. cpu.cpp is compiled once for each CPU level; it includes no torch and no template of the standard library.
#pragma once

#include <stdint.h>

#include "../common/cpu_level.h"

namespace precast {
namespace softmax {

// One byte for each column, not zero: masked. Rows are numbered through batch, head and query; a stride is 0 where the
// mask has one line for all.
struct MaskRows {
  const uint8_t* data;  // null: no mask
  int64_t batch;
  int64_t head;
  int64_t query;
};

// Rows are `columns` elements that follow each other; strides are in elements, from one row to the next. A causal row
// with query q holds the first q + 1 + diagonal columns; the others are not read, and the result is zero there.
struct ForwardRows {
  const void* x;
  void* y;  // rows follow each other without a gap
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
  bool uniform;  // a row whose columns are all masked: 1 / columns instead of 0
};

struct BackwardRows {
  const void* grad;
  const void* y;
  void* grad_x;  // rows follow each other without a gap
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

#define PRECAST_SOFTMAX_CPU_LEVEL(level)                               \
  namespace level {                                                    \
  void forward(const ForwardRows& rows, int64_t begin, int64_t end);   \
  void backward(const BackwardRows& rows, int64_t begin, int64_t end); \
  }

PRECAST_EACH_CPU_LEVEL(PRECAST_SOFTMAX_CPU_LEVEL)

#undef PRECAST_SOFTMAX_CPU_LEVEL

}  // namespace softmax
}  // namespace precast
