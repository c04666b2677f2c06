// The structure that host.cpp passes to the kernels of device.cu by value. Compiled on both sides.
#pragma once

#include "../gpu/division.h"
#include "../rotary/angles.h"
#include "../rotary/head_norm.h"

namespace precast {
namespace rotary {

// A tensor to read and one to write, which may be the same. Strides are in bytes: between the merged leading
// dimensions, the tokens, and the heads of a token.
struct Heads {
  const char* from;
  char* to;
  long long from_outer, from_token, from_head;
  long long to_outer, to_token, to_head;
};

// A launch covers the heads of some tokens, those of query before those of key, with the same number of units in each
// (rotate.cuh). blockIdx.y counts the leading dimensions.
struct RotaryArgs {
  Heads query;
  Heads key;
  Angles angles;
  long long first_outer;
  long long first_token;
  Division groups;  // per token: `each` heads of query, or of key; the last of either may have fewer
  Division units;   // per head
  unsigned query_groups;
  unsigned query_heads, key_heads;
  unsigned each;
  unsigned total;       // units of groups in total, below 2^31
  unsigned head_bytes;  // per head
};

// Heads that are normalised before they are rotated. In `heads`, a head has a power of two of units, up to 32, of which
// the last may be empty.
struct NormRotaryArgs {
  RotaryArgs heads;
  HeadNorm norm;
};

static_assert(sizeof(RotaryArgs) == 248 && sizeof(NormRotaryArgs) == 280, "host and device must agree");

}  // namespace rotary
}  // namespace precast
