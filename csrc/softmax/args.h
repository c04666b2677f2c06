// What host.cpp and backward.cpp hand to the kernels: one structure by value. Compiled on both sides, so it includes
// nothing. Strides, and the mask's, are in bytes.
#pragma once

namespace precast {
namespace softmax {

// Rows are numbered through batch, head and query. A causal row with query q holds the first q + 1 + diagonal columns
// (none, where that is not positive); the others are not read, and the result is zero there.
struct ForwardArgs {
  const char* x;
  char* y;
  const char* mask;  // one byte for each column, not zero: masked. Null: no mask
  long long x_stride;
  long long y_stride;
  long long mask_batch;  // from one batch, head or query to the next; 0 where the mask has one for all
  long long mask_head;
  long long mask_query;
  long long first_row;  // the number of the first row of this launch
  long long columns;
  long long queries;
  long long heads;
  long long diagonal;
  unsigned int rows;     // of this launch
  unsigned int vectors;  // 16-byte vectors that are moved as such
  float scale;
  float masked_value;  // what a masked column counts as, after scaling
  int causal;
  int uniform;            // a row whose columns are all masked: 1 / columns instead of 0
  unsigned int prefetch;  // ask the L2 cache for the row so many rows on; 0: do not
  unsigned int tile;      // so many queries of every head in turn, for heads that share a mask; 0: in order of memory
};

// grad_x = scale * y * (grad - sum(grad * y)).
struct BackwardArgs {
  const char* grad;
  const char* y;
  char* grad_x;
  long long grad_stride;
  long long y_stride;
  long long grad_x_stride;
  long long first_row;
  long long columns;
  long long queries;
  long long diagonal;
  unsigned int rows;
  unsigned int vectors;
  float scale;
  int causal;
};

static_assert(sizeof(ForwardArgs) == 136 && sizeof(BackwardArgs) == 96, "host and device must agree");

}  // namespace softmax
}  // namespace precast
