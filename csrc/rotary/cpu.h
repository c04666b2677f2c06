// Rotary embedding on the CPU: the seam between host.cpp, which knows tensors and threads, and cpu.cpp, which knows
// vectors and is compiled once for each CPU level. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../common/cpu_level.h"
#include "args.h"

namespace precast {
namespace rotary {

// The heads of a call. Of each token come those of query, then those of key.
struct Work {
  Heads query;
  Heads key;
  Angles angles;
  int64_t outer;
  int64_t tokens;
  int64_t query_heads;
  int64_t heads;  // of a token, of both tensors
  int64_t width;
  int dtype;      // the number of a precast::DType
  bool in_place;  // what is not rotated is there already
};

// Heads [begin, end), counted through all tokens.
using RotateFunction = void (*)(const Work& work, int64_t begin, int64_t end);

#define PRECAST_ROTARY_CPU_LEVEL(level)                            \
  namespace level {                                                \
  void rotate_heads(const Work& work, int64_t begin, int64_t end); \
  }

PRECAST_EACH_CPU_LEVEL(PRECAST_ROTARY_CPU_LEVEL)

#undef PRECAST_ROTARY_CPU_LEVEL

}  // namespace rotary
}  // namespace precast
