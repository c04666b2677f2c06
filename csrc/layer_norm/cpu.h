// LayerNorm on the CPU: the interface between host.cpp, which handles tensors and threads, and cpu.cpp, which handles
// vectors. cpu.cpp is compiled once per CPU level, and every level defines the three functions below in its own
// namespace. Nothing here throws, allocates or starts threads. host.cpp calls with disjoint row ranges from several
// threads.
#pragma once

#include <stdint.h>

#include "../common/cpu_level.h"

namespace precast {
namespace layer_norm {

// Rows are `hidden` contiguous elements. Strides are in elements, from one row to the next.
struct ForwardRows {
  const void* x;
  const void* weight;  // null: ones
  const void* bias;    // null: zeros
  void* y;             // without gaps between rows
  int64_t hidden;
  int64_t x_stride;
  float eps;
  bool wide_columns;  // weight and bias are float32, and x is narrower
  int dtype;          // the number of a precast::DType
};

struct BackwardRows {
  const void* grad;
  const void* x;
  const void* weight;  // null: ones
  void* grad_x;        // without gaps between rows
  double* parts;       // (chunks, 2, hidden): the sums over each chunk's rows of grad * normalised x, and of grad
  int64_t rows;
  int64_t hidden;
  int64_t chunk_rows;  // chunk i holds the rows [i * chunk_rows, min(rows, (i + 1) * chunk_rows))
  int64_t grad_stride;
  int64_t x_stride;
  float eps;
  bool wide_columns;  // weight and bias are float32, and x is narrower
  int dtype;
};

// Rows [begin, end).
using ForwardFunction = void (*)(const ForwardRows& rows, int64_t begin, int64_t end);
// Chunks [begin, end): writes their grad_x rows and their lines of parts, which come uninitialised. The order in which
// a chunk's rows are added depends only on the shape, so the result does not depend on the threads.
using BackwardFunction = void (*)(const BackwardRows& rows, int64_t begin, int64_t end);
// result[c] = round(sum over chunks, in a fixed order, of parts[chunk * stride + c]) for the columns [begin, end).
// Without chunks the result is 0.
using ColumnsFunction = void (*)(const double* parts, int64_t chunks, int64_t stride, void* result, int dtype,
                                 int64_t begin, int64_t end);

#define PRECAST_LAYER_NORM_CPU_LEVEL(level)                                                                \
  namespace level {                                                                                        \
  void forward(const ForwardRows& rows, int64_t begin, int64_t end);                                       \
  void backward(const BackwardRows& rows, int64_t begin, int64_t end);                                     \
  void reduce(const double* parts, int64_t chunks, int64_t stride, void* result, int dtype, int64_t begin, \
              int64_t end);                                                                                \
  }

PRECAST_EACH_CPU_LEVEL(PRECAST_LAYER_NORM_CPU_LEVEL)

#undef PRECAST_LAYER_NORM_CPU_LEVEL

}  // namespace layer_norm
}  // namespace precast
