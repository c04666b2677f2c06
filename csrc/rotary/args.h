// What host.cpp hands to the kernels of device.cu: one structure by value. Compiled on both sides.
#pragma once

#include "../common/division.h"
#include "../rotary/angles.h"

namespace precast {
namespace rotary {

// A tensor that is read and the one that is written, which may be the same. Strides are in bytes: between the leading
// dimensions as one, the tokens, and the heads of a token.
struct Heads {
  const char* from;
  char* to;
  long long from_outer, from_token, from_head;
  long long to_outer, to_token, to_head;
};

// A launch has the heads of some tokens, those of query before those of key, and as many units in each (rotate.cuh);
// blockIdx.y counts through the leading dimensions.
struct RotaryArgs {
  Heads query;
  Heads key;
  Angles angles;
  long long first_outer;
  long long first_token;
  Division heads;  // of a token, of both tensors
  Division units;  // in a head
  unsigned query_heads;
  unsigned total;       // units in all: below 2^31
  unsigned head_bytes;  // of a head
};

static_assert(sizeof(RotaryArgs) == 240, "host and device must agree");

}  // namespace rotary
}  // namespace precast
