// The structures that host.cpp and backward.cpp pass to the kernels by value. Compiled on both sides, so it includes
// nothing. All strides are in bytes.
#pragma once

namespace precast {
namespace softmax {

// Rows are numbered through batch, head and query. A causal row with query q holds the first q + 1 + diagonal columns,
// or none if that is not positive. The other columns are not read, and their result is zero.
struct ForwardArgs {
  const char* x;
  char* y;
  const char* mask;  // one byte per column; not zero: masked. Null: no mask
  long long x_stride;
  long long y_stride;
  long long mask_batch;  // strides between batches, heads and queries; 0 where the mask is shared
  long long mask_head;
  long long mask_query;
  long long first_row;  // number of the first row of this launch
  long long columns;
  long long queries;
  long long heads;
  long long diagonal;
  unsigned int rows;     // in this launch
  unsigned int vectors;  // 16-byte vectors that are moved as such
  float scale;
  float masked_value;  // replaces a masked column, after scaling
  int causal;
  int uniform;            // if all columns of a row are masked, the result is 1 / columns instead of 0
  unsigned int prefetch;  // prefetch the row this many rows ahead into L2; 0: none
  unsigned int tile;      // queries per head and turn, for heads that share a mask; 0: memory order
  int early;              // the launch starts early
  int peeled;             // read by the `any` kernel: no mask, and x and y are off by the same number of bytes from
                          // multiples of 16 in every row
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
  int early;   // the launch starts early
  int peeled;  // read by the `any` kernel: all tensors are off by the same number of bytes from multiples of 16
};

static_assert(sizeof(ForwardArgs) == 144 && sizeof(BackwardArgs) == 104, "host and device must agree");

}  // namespace softmax
}  // namespace precast
