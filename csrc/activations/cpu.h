// Gated activations on the CPU: the interface between host.cpp and backward.cpp, which handle tensors and threads, and
// cpu.cpp, which handles vectors and is compiled once per CPU level. Every level defines the two functions below in the
// namespace precast::activations::<level>. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"
#include "args.h"

namespace precast {
namespace activations {

// A row of `columns` elements is processed in pieces, so that a single wide row also has work for several threads.
constexpr int64_t kPiece = 4096;

inline int64_t pieces_of(int64_t columns) { return (columns + kPiece - 1) / kPiece; }

// Strides are in elements, from one row to the next.
struct ForwardRows {
  const void* gate;
  const void* factor;  // null: the activation alone
  void* y;             // without gaps between rows
  int64_t columns;
  int64_t gate_stride;
  int64_t factor_stride;
  int64_t step;  // from one gate to the next, and from one factor to the next: 2 if they alternate
  int dtype;     // the number of a precast::DType
  int activation;
  float alpha, limit;  // as in args.h
};

struct BackwardRows {
  const void* grad;
  const void* gate;
  const void* factor;
  void* grad_gate;
  void* grad_factor;
  int64_t columns;
  int64_t grad_stride;
  int64_t gate_stride;
  int64_t factor_stride;
  int64_t grad_x_stride;  // of both gradients
  int64_t step;           // of the gradients as well
  int dtype;
  int activation;
  float alpha, limit;
};

// Pieces [begin, end), counted through all rows.
using ForwardFunction = void (*)(const ForwardRows& rows, int64_t begin, int64_t end);
using BackwardFunction = void (*)(const BackwardRows& rows, int64_t begin, int64_t end);

PRECAST_CPU_FUNCTION(forward, (const ForwardRows& rows, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(backward, (const BackwardRows& rows, int64_t begin, int64_t end))

}  // namespace activations
}  // namespace precast
