// RMSNorm on the CPU: the interface between host.cpp, which handles tensors and threads, and cpu.cpp, which handles
// vectors.
//
// cpu.cpp is compiled once per CPU level with -DPRECAST_CPU_LEVEL=<level> and that level's flags. Every level defines
// the three functions below in the namespace precast::rms_norm::<level>. It includes neither torch nor templates of the
// standard library: the linker keeps one copy of an inline function, which may be the AVX-512 one. Nothing here throws,
// allocates or starts threads. host.cpp calls with disjoint row ranges from several threads.
#pragma once

#include <stdint.h>

#include "../common/cpu_level.h"

namespace precast {
namespace rms_norm {

// The numbers of the ops' `casting` argument.
enum : int { kCastingNone = 0, kCastingLlama = 1, kCastingGemma = 2 };

// Rows are `hidden` contiguous elements. Strides are in elements, from one row to the next.
struct ForwardRows {
  const void* x;
  const void* residual;  // null: the plain norm. Else sum = round(x + residual) is stored and normalised.
  const void* weight;
  void* y;    // may be x
  void* sum;  // may be residual; unused without a residual
  int64_t hidden;
  int64_t x_stride;
  int64_t residual_stride;
  int64_t y_stride;
  int64_t sum_stride;
  float eps;
  int dtype;  // the number of a precast::DType
  int casting;
  bool wide_weight;  // it is float32, and x is narrower
};

// grad_x = gradient of the norm for x (+ grad_sum if given). The row statistic is recomputed from x.
struct BackwardRows {
  const void* grad;
  const void* grad_sum;  // null: nothing is added
  const void* x;
  const void* weight;
  void* grad_x;          // without gaps between rows
  double* weight_parts;  // (chunks, hidden): the sum over each chunk's rows of grad * normalised x
  int64_t rows;
  int64_t hidden;
  int64_t chunk_rows;  // chunk i holds the rows [i * chunk_rows, min(rows, (i + 1) * chunk_rows))
  int64_t grad_stride;
  int64_t grad_sum_stride;
  int64_t x_stride;
  float eps;
  int dtype;
  int casting;
  bool wide_weight;  // it is float32, and x is narrower
};

// Rows [begin, end).
using ForwardFunction = void (*)(const ForwardRows& rows, int64_t begin, int64_t end);
// Chunks [begin, end): writes their grad_x rows and their lines of weight_parts, which come uninitialised. The order in
// which a chunk's rows are added depends only on the shape, so the result does not depend on the threads.
using BackwardFunction = void (*)(const BackwardRows& rows, int64_t begin, int64_t end);
// grad_weight[c] = round(sum over chunks, in a fixed order, of weight_parts[chunk][c]) for the columns [begin, end).
// Without chunks the result is 0.
using WeightFunction = void (*)(const double* weight_parts, int64_t chunks, int64_t hidden, void* grad_weight,
                                int dtype, int64_t begin, int64_t end);

#define PRECAST_RMS_NORM_CPU_LEVEL(level)                                                                      \
  namespace level {                                                                                            \
  void forward(const ForwardRows& rows, int64_t begin, int64_t end);                                           \
  void backward(const BackwardRows& rows, int64_t begin, int64_t end);                                         \
  void reduce_weight(const double* weight_parts, int64_t chunks, int64_t hidden, void* grad_weight, int dtype, \
                     int64_t begin, int64_t end);                                                              \
  }

PRECAST_EACH_CPU_LEVEL(PRECAST_RMS_NORM_CPU_LEVEL)

#undef PRECAST_RMS_NORM_CPU_LEVEL

}  // namespace rms_norm
}  // namespace precast
