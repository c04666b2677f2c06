// LayerNorm on the CPU: the seam between host.cpp, which knows tensors and threads, and cpu.cpp, which knows vectors.
// cpu.cpp is compiled once for each CPU level, and every level defines the three functions below in a namespace of its
// own. Nothing here throws, allocates or starts threads. host.cpp calls with disjoint row ranges from several threads.
#pragma once

#include <stdint.h>

#include "../common/cpu_level.h"

namespace precast {
namespace layer_norm {

// Rows are `hidden` elements that follow each other; strides are in elements, from one row to the next.
struct ForwardRows {
  const void* x;
  const void* weight;  // null: ones
  const void* bias;    // null: zeros
  void* y;             // rows follow each other without a gap
  int64_t hidden;
  int64_t x_stride;
  float eps;
  int dtype;  // the number of a precast::DType
};

struct BackwardRows {
  const void* grad;
  const void* x;
  const void* weight;  // null: ones
  void* grad_x;        // rows follow each other without a gap
  double* parts;       // (chunks, 2, hidden): the sums over each chunk's rows of grad * normalised x, and of grad
  int64_t rows;
  int64_t hidden;
  int64_t chunk_rows;  // chunk i holds the rows [i * chunk_rows, min(rows, (i + 1) * chunk_rows))
  int64_t grad_stride;
  int64_t x_stride;
  float eps;
  int dtype;
};

// Rows [begin, end).
using ForwardFunction = void (*)(const ForwardRows& rows, int64_t begin, int64_t end);
// Chunks [begin, end): writes their grad_x rows and their lines of parts (which come uninitialised). Rows of a chunk
// are added in an order that depends on the shape alone, so the result does not depend on the threads.
using BackwardFunction = void (*)(const BackwardRows& rows, int64_t begin, int64_t end);
// result[c] = round(sum over chunks, in a fixed order, of parts[chunk * stride + c]) for the columns [begin, end). No
// chunk: 0.
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
