// Shared by forward and backward on the GPU.
#pragma once

#include "../gpu/columns.cuh"
#include "../gpu/norm.cuh"
#include "../norm/args.h"

namespace precast {
namespace gated_norm {

// The function of a gate, by the formula of torch, and its derivative.
struct Gate {
  float value, slope;
};

DEVICE Gate gate_at(float g, int sigmoid) {
  const float e = 1.0f + expf(-g), s = 1.0f / e;
  if (sigmoid != 0) return {s, s * (1.0f - s)};
  return {g / e, s * (1.0f + fminf(fmaxf(g, -300.0f), 300.0f) * (1.0f - s))};
}

// A row: the tensors' elements of a group of a token.
struct Row {
  u32 token, group;
  DEVICE Row(const ForwardArgs& a, u32 row) {
    token = quotient(row, a.groups);
    group = row - token * a.groups.divisor;
  }
  DEVICE const char* at(const char* data, i64 stride, i64 bytes) const { return data + token * stride + group * bytes; }
};

}  // namespace gated_norm
}  // namespace precast
