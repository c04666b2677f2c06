// The structures that host.cpp passes to the kernels by value. Compiled on both sides, so it includes nothing. All
// strides are in bytes.
#pragma once

namespace precast {
namespace losses {

// For a row x with target t, weights w (1 if absent), e = smoothing, and lse = log(sum(exp(x))):
//
//   loss    = scale ((1 - e) w_t (lse - x_t) + e / C sum_j w_j (lse - x_j) + z_loss lse^2)
//   grad_j  = share exp(x_j - lse) - spread w_j - (j == t ? pull : 0)
//
// A row whose target is `ignore_index` has a zero gradient and loss; a target outside of the row makes both NaN.
struct LossArgs {
  const char* x;
  char* grad;            // null: only the losses are computed; may be x
  const char* target;    // one 64-bit integer per row, or a 32-bit one
  const float* weight;   // one per column; null: all are 1
  const float* factors;  // the scale of each row, `factor_step` apart; null: 1
  const float* sum;      // of the weights, if they and the scales are there
  const float* given;    // lse, share, spread and pull of each row, row_count apart; null: from the row itself
  float* losses;
  float* lse;
  long long x_stride;
  long long grad_stride;
  long long columns;
  long long ignore_index;
  long long row_count;   // of all launches
  unsigned int rows;     // of this launch
  unsigned int vectors;  // 16-byte vectors that are moved as such
  float smoothing;
  float of_each;  // the smoothing of one column
  float z_loss;
  int narrow_target;  // targets have 32 bits
  int early;          // the launch starts early
  int peeled;         // read by the `any` kernel: x and grad are off by the same number of bytes from multiples of 16
  int factor_step;    // in elements: 0 if one scale serves all rows
};

// Multiplies each row by its factor, in place. Rows whose factor is 1 are not touched.
struct ScaleArgs {
  char* grad;
  const float* factor;
  long long grad_stride;
  long long factor_step;  // in elements: 0 if one factor serves all rows
  long long columns;
  unsigned int rows;     // of this launch
  unsigned int vectors;  // 0: Peeled finds them
  int peeled;            // 1
};

static_assert(sizeof(LossArgs) == 152 && sizeof(ScaleArgs) == 56, "host and device must agree");

}  // namespace losses
}  // namespace precast
