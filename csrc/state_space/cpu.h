// A token of a state-space model on the CPU: the interface between host.cpp, which handles tensors and threads, and
// cpu.cpp, which is compiled once per CPU level. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"
#include "args.h"

namespace precast {
namespace state_space {

struct UpdateRows {
  UpdateArgs args;  // its slots have been checked
  int dtype;        // the number of a precast::DType
  bool wide;        // the states are float32, and x is narrower
};

// Heads [begin, end), numbered through the sequences.
PRECAST_CPU_FUNCTION(update, (const UpdateRows& work, int64_t begin, int64_t end))

}  // namespace state_space
}  // namespace precast
