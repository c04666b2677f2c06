// What host.cpp and backward.cpp hand to the kernels: one structure by value. Compiled on both sides, so it includes
// nothing.
#pragma once

namespace precast {
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
  unsigned int vectors;   // of 16 bytes in a row that may be moved as such: all of it, or nothing
  unsigned int prefetch;  // ask the L2 cache for the row so many rows on; 0: do not
  float inverse_hidden;
  float eps;
};

// A worker is what walks over rows: a block, or a warp of it where a block holds several rows. Worker i takes the rows
// i, i + workers, ..., of which there may be none. A block leaves the sums of its workers' shares of the two gradients
// in its line of the parts; of the `any` kernels each worker has a line.
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
  unsigned int stages;  // rows of a worker that shared memory holds: two or three
  float inverse_hidden;
  float eps;
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

static_assert(sizeof(ForwardArgs) == 80 && sizeof(BackwardArgs) == 112 && sizeof(ColumnArgs) == 40,
              "host and device must agree");

}  // namespace layer_norm
}  // namespace precast
