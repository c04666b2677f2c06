// Rotary embedding on the CPU: the interface between host.cpp, which handles tensors and threads, and cpu.cpp, which
// handles vectors and is compiled once per CPU level. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"
#include "args.h"

namespace precast {
namespace rotary {

// The heads of a call. For each token, the heads of query come before those of key.
struct Work {
  Heads query;
  Heads key;
  Angles angles;
  int64_t outer;
  int64_t tokens;
  int64_t query_heads;
  int64_t heads;  // per token, in both tensors
  int64_t width;
  int dtype;      // the number of a precast::DType
  bool in_place;  // the elements that are not rotated are already there
  bool normed;    // a call of an op that may normalise heads, by `norm`
  HeadNorm norm;
};

// Rotates heads [begin, end), counted through all tokens.
using RotateFunction = void (*)(const Work& work, int64_t begin, int64_t end);

PRECAST_CPU_FUNCTION(rotate_heads, (const Work& work, int64_t begin, int64_t end))

}  // namespace rotary
}  // namespace precast
