// The norms on the CPU: the interface between their host code, which handles tensors and threads, and rms_norm_cpu.cpp
// and layer_norm_cpu.cpp, which handle vectors.
//
// Those are compiled once per CPU level with -DPRECAST_CPU_LEVEL=<level> and that level's flags. Every level defines
// the three functions below in the namespaces precast::rms_norm::<level> and precast::layer_norm::<level>. They include
// neither torch nor templates of the standard library: the linker keeps one copy of an inline function, which may be
// the AVX-512 one. Nothing here throws, allocates or starts threads. Host code calls with disjoint row ranges from
// several threads.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"

namespace precast {
namespace norm {

// Rows are `hidden` contiguous elements. Strides are in elements, from one row to the next.
struct ForwardRows {
  const void* x;
  const void* residual;  // of rms_norm; null: the plain norm. Else sum = round(x + residual) is stored and normalised.
  const void* weight;    // null: ones; never null for rms_norm
  const void* bias;      // of layer_norm; null: zeros
  void* y;               // may be x for rms_norm
  void* sum;             // may be residual; unused without a residual
  int64_t hidden;
  int64_t x_stride;
  int64_t residual_stride;
  int64_t y_stride;
  int64_t sum_stride;
  float eps;
  int dtype;          // the number of a precast::DType
  int casting;        // of rms_norm
  bool wide_columns;  // weight and bias are float32, and x is narrower
};

// grad_x = gradient of the norm for x (+ grad_sum if given). The statistics of a row are recomputed from x.
struct BackwardRows {
  const void* grad;
  const void* grad_sum;  // of rms_norm; null: nothing is added
  const void* x;
  const void* weight;  // as above
  void* grad_x;        // without gaps between rows
  double* parts;       // (chunks, sums, hidden): over each chunk's rows of grad * normalised x; layer_norm: and of grad
  int64_t rows;
  int64_t hidden;
  int64_t chunk_rows;  // chunk i holds the rows [i * chunk_rows, min(rows, (i + 1) * chunk_rows))
  int64_t grad_stride;
  int64_t grad_sum_stride;
  int64_t x_stride;
  float eps;
  int dtype;
  int casting;
  bool wide_columns;
};

// Rows of a norm with a gate: one group of the columns of each token. `forward.y` is grad_x in the backward.
struct GatedRows {
  const void *x, *gate, *weight, *grad;  // gate and weight may be null
  void *y, *grad_gate;
  double* parts;  // as in BackwardRows
  int64_t rows, hidden, chunk_rows;
  int64_t x_stride, gate_stride, grad_stride, y_stride;
  float scale, eps;  // the factor of the sum of squares
  int dtype;
  bool llama, gate_first, sigmoid, wide_columns;
};

// Rows [begin, end).
using ForwardFunction = void (*)(const ForwardRows& rows, int64_t begin, int64_t end);
// Chunks [begin, end): writes their grad_x rows and their lines of parts, which come uninitialised. The order in which
// a chunk's rows are added depends only on the shape, so the result does not depend on the threads.
using BackwardFunction = void (*)(const BackwardRows& rows, int64_t begin, int64_t end);
// result[c] = round(sum over chunks, in a fixed order, of parts[chunk * stride + c]) for the columns [begin, end).
// Without chunks the result is 0.
using ReduceFunction = void (*)(const double* parts, int64_t chunks, int64_t stride, void* result, int dtype,
                                int64_t begin, int64_t end);

}  // namespace norm

namespace rms_norm {

using norm::BackwardRows;
using norm::ForwardRows;

// The numbers of the ops' `casting` argument.
enum : int { kCastingNone = 0, kCastingLlama = 1, kCastingGemma = 2 };

PRECAST_CPU_FUNCTION(forward, (const ForwardRows& rows, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(backward, (const BackwardRows& rows, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(reduce, (const double* parts, int64_t chunks, int64_t stride, void* result, int dtype,
                              int64_t begin, int64_t end))

}  // namespace rms_norm

namespace gated_norm {

using norm::GatedRows;

PRECAST_CPU_FUNCTION(forward, (const GatedRows& rows, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(backward, (const GatedRows& rows, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(reduce, (const double* parts, int64_t chunks, int64_t stride, void* result, int dtype,
                              int64_t begin, int64_t end))

}  // namespace gated_norm

namespace layer_norm {

using norm::BackwardRows;
using norm::ForwardRows;

PRECAST_CPU_FUNCTION(forward, (const ForwardRows& rows, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(backward, (const BackwardRows& rows, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(reduce, (const double* parts, int64_t chunks, int64_t stride, void* result, int dtype,
                              int64_t begin, int64_t end))

}  // namespace layer_norm

}  // namespace precast
