// The structures that host code passes to the kernels by value. Compiled on both sides.
#pragma once

#include "../gpu/division.h"

namespace precast {
namespace rms_norm {

// How `weight` is applied and where the result is rounded: the ops' `casting` argument.
enum Casting : int {
  kNone = 0,   // round(x * r * weight)
  kLlama = 1,  // round(round(x * r) * weight)
  kGemma = 2,  // round(x * r * (1 + weight))
};

// Strides are in bytes, from one row to the next. The last dimension is contiguous everywhere.
struct ForwardArgs {
  const char* x;
  const char* residual;  // null: the plain norm
  const char* weight;
  char* y;    // may be x
  char* sum;  // may be residual; round(x + residual)
  long long x_stride;
  long long residual_stride;
  long long y_stride;
  long long sum_stride;
  long long hidden;
  unsigned int rows;
  unsigned int vectors;   // 16-byte vectors that may be moved as such: the whole row, or none of it
  unsigned int prefetch;  // prefetch the row this many rows ahead into L2; 0: none
  float inverse_hidden;
  float eps;
  int casting;
  int wide;   // the weight is float32, and x is narrower; read by the `any` and `wide` kernels
  int early;  // the launch starts early
};

// A worker walks over rows. It is a block, or a warp of a block that holds several rows. Worker i takes the rows
// i, i + workers, ...; there may be none. A block writes the sum of its workers' shares of grad_weight to its line of
// `parts`. In the `any` kernels each worker has a line.
struct BackwardArgs {
  const char* grad;
  const char* grad_sum;  // null: nothing is added to grad_x
  const char* x;
  const char* weight;
  char* grad_x;
  float* parts;  // (lines, hidden)
  long long grad_stride;
  long long grad_sum_stride;
  long long x_stride;
  long long grad_x_stride;
  long long hidden;
  long long rows;
  unsigned int vectors;
  unsigned int workers;
  unsigned int stages;  // rows per worker in shared memory: two or three
  float inverse_hidden;
  float eps;
  int casting;
  int wide;        // the weight is float32, and x is narrower; read by the kernels that serve it, as walk.h says
  unsigned slice;  // vectors of a row that each block of a cluster has; read by the `wide` kernels
};

// grad_weight[c] = round(sum of parts[i][c] over i).
struct ColumnArgs {
  const float* parts;
  char* grad_weight;
  long long hidden;
  unsigned int lines;
  int dtype;  // of grad_weight: a precast::DType
};

static_assert(sizeof(ForwardArgs) == 112 && sizeof(BackwardArgs) == 128 && sizeof(ColumnArgs) == 32,
              "host and device must agree");

}  // namespace rms_norm

namespace gated_norm {

using rms_norm::ColumnArgs;

// A row is a group of the columns of a token: groups follow each other. Strides are in bytes, from token to token,
// where a group follows the one before it.
struct ForwardArgs {
  const char* x;
  const char* gate;    // null: there is none
  const char* weight;  // of all groups; null: ones
  char* y;
  long long x_stride;
  long long gate_stride;
  long long hidden;  // of a group
  Division groups;
  unsigned int rows;
  unsigned int vectors;  // 16-byte vectors that may be moved as such: the whole row, or none of it
  float scale;           // of the sum of squares
  float eps;
  int llama;       // rounds before the weight and before the gate
  int gate_first;  // the gate is applied to x, else to the result
  int sigmoid;     // the gate is a sigmoid, not silu
  int wide;        // the weight is float32, and x is narrower
  int early;
};

// Worker i takes the rows i, i + workers, ..., all of one group, and has a slice of a line of `parts`.
struct BackwardArgs {
  ForwardArgs forward;  // y: grad_x
  const char* grad;
  char* grad_gate;
  float* parts;  // (workers / groups, groups * hidden), or null
  long long grad_stride;
  unsigned int workers;
  int unused;
};

static_assert(sizeof(ForwardArgs) == 104 && sizeof(BackwardArgs) == 144, "host and device must agree");

}  // namespace gated_norm

namespace layer_norm {

// Strides are in bytes, from one row to the next. The last dimension is contiguous everywhere.
struct ForwardArgs {
  const char* x;
  const char* weight;  // null: ones
  const char* bias;    // null: zeros
  char* y;
  long long x_stride;
  long long y_stride;
  long long hidden;
  unsigned int rows;
  unsigned int vectors;   // 16-byte vectors that may be moved as such: the whole row, or none of it
  unsigned int prefetch;  // prefetch the row this many rows ahead into L2; 0: none
  float inverse_hidden;
  float eps;
  int wide;   // weight and bias are float32, and x is narrower; read by the `any` and `wide` kernels
  int early;  // the launch starts early
};

// A worker walks over rows. It is a block, or a warp of a block that holds several rows. Worker i takes the rows
// i, i + workers, ...; there may be none. A block writes the sums of its workers' shares of the two gradients
// to its line of the parts. In the `any` kernels each worker has a line.
struct BackwardArgs {
  const char* grad;
  const char* x;
  const char* weight;  // null: ones
  char* grad_x;
  float* weight_parts;  // (lines, hidden), or null: not wanted
  float* bias_parts;    // likewise
  long long grad_stride;
  long long x_stride;
  long long grad_x_stride;
  long long hidden;
  long long rows;
  unsigned int vectors;
  unsigned int workers;
  unsigned int stages;  // rows per worker in shared memory: two or three
  float inverse_hidden;
  float eps;
  int wide;        // the weight is float32, and x is narrower; read by the kernels that serve it, as walk.h says
  unsigned slice;  // vectors of a row that each block of a cluster has; read by the `wide` kernels
};

// results[y][c] = round(sum of parts[y][i][c] over i), where y is a row of blocks.
struct ColumnArgs {
  const float* parts;  // (rows of blocks, lines, hidden)
  char* result;        // of the first row of blocks
  char* second;        // of the second, if there is one
  long long hidden;
  unsigned int lines;
  int dtype;  // of the results: a precast::DType
};

static_assert(sizeof(ForwardArgs) == 88 && sizeof(BackwardArgs) == 120 && sizeof(ColumnArgs) == 40,
              "host and device must agree");

}  // namespace layer_norm
}  // namespace precast
