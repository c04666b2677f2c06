// The structures that host.cpp and backward.cpp pass to the kernels of device.cu and backward.cu by value. Compiled on
// both sides.
#pragma once

#include "../common/division.h"

namespace precast {
namespace activations {

// The function applied to the gate.
enum Activation : int {
  kSilu = 0,      // x / (1 + exp(-x))
  kGelu = 1,      // x / 2 (1 + erf(x / sqrt(2)))
  kGeluTanh = 2,  // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
};

// Threads per block in all kernels.
constexpr unsigned int kThreads = 64;

// Elements per thread in an `any` kernel, kThreads apart. All are loaded before the first is used.
constexpr int kElements = 4;

// The units of one launch, row by row: vectors of 16 bytes, or single elements.
struct Units {
  unsigned int total;  // below 2^31
  Division columns;
};

// Strides are in bytes, from one row to the next.
struct ForwardArgs {
  const char* gate;    // the half of x to which the activation is applied
  const char* factor;  // the other half
  char* y;
  long long x_stride;
  long long y_stride;
  Units units;
  int activation;      // read by the kernels for any row; the others have it built in
  unsigned row_bytes;  // of y; read by the `shifted` kernels
};

struct BackwardArgs {
  const char* grad;
  const char* gate;
  const char* factor;
  char* grad_gate;
  char* grad_factor;
  long long grad_stride;
  long long x_stride;
  long long grad_x_stride;
  Units units;
  int activation;
};

static_assert(sizeof(ForwardArgs) == 64 && sizeof(BackwardArgs) == 88, "host and device must agree");

}  // namespace activations
}  // namespace precast
