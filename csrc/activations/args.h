// The structures that host.cpp and backward.cpp pass to the kernels of device.cu and backward.cu by value. Compiled on
// both sides.
#pragma once

#include "../gpu/division.h"

namespace precast {
namespace activations {

// The function applied to the gate. The first three have kernels of their own, the others share one.
enum Activation : int {
  kSilu = 0,       // x / (1 + exp(-x))
  kGelu = 1,       // x / 2 (1 + erf(x / sqrt(2)))
  kGeluTanh = 2,   // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  kFatRelu = 3,    // x, but 0 up to `alpha`
  kSwigluOai = 4,  // x / (1 + exp(-alpha x)) for x up to `limit`; the factor is clamped too, and 1 is added
  kSwish = 5,      // x / (1 + exp(-alpha x))
  kGeluNew = 6,    // kGeluTanh, but rounded once
};

// What a unit is.
enum Form : int {
  kVectors = 0,  // vectors of 16 bytes
  kShifted = 1,  // aligned vectors of y, of rows at any address
  kSingle = 2,   // elements
};

// Threads per block.
constexpr unsigned int kThreads = 64;
constexpr unsigned int kManyThreads = 256;  // in `others`, for many vectors without factors

// Vectors of a row that a block of backward_shifted handles: a warp's last lane only lends its neighbour a vector.
constexpr int kLentVectors = kThreads / 32 * 31;

// Elements per thread in an `any` kernel, kThreads apart. All are loaded before the first is used.
constexpr int kElements = 4;

// The units of one launch, row by row.
struct Units {
  unsigned int total;  // below 2^31
  Division columns;
};

// Strides are in bytes, from one row to the next.
struct ForwardArgs {
  const char* gate;    // the elements to which the activation is applied
  const char* factor;  // null: the activation alone, by an `others` kernel
  char* y;
  const char* gate_end;  // of the memory of all gates and factors; read by the `shifted` kernels
  const char* factor_end;
  long long gate_stride;
  long long factor_stride;
  long long y_stride;
  Units units;
  int activation;      // not read by the kernels that have it built in
  unsigned row_bytes;  // of y; read by the `shifted` kernels
  float alpha;
  float limit;
  int step;   // elements from one gate to the next: 2 if gates and factors alternate
  int form;   // a Form; read by the `others` kernels
  int early;  // the launch starts early
  int tail;   // elements in the last vector of all, if it is not a whole one; else 0
};

struct BackwardArgs {
  const char* grad;
  const char* gate;
  const char* factor;
  char* grad_gate;
  char* grad_factor;
  long long grad_stride;
  long long gate_stride;
  long long factor_stride;
  long long grad_x_stride;  // of both gradients
  Units units;
  int activation;
  float alpha;
  float limit;
  int step;  // of the gradients as well
  int form;
  int tail;
  const char* grad_end;  // of the memory of all gradients, gates and factors; read by the `shifted` kernels
  const char* gate_end;
  const char* factor_end;
  unsigned row_bytes;  // of grad; likewise
  int unused;
};

static_assert(sizeof(ForwardArgs) == 112 && sizeof(BackwardArgs) == 144, "host and device must agree");

}  // namespace activations
}  // namespace precast
