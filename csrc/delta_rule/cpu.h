// The delta rule on the CPU: the interface between host.cpp, which handles tensors and threads, and cpu.cpp, which
// handles vectors and is compiled once per CPU level. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"
#include "args.h"

namespace precast {
namespace delta_rule {

// Static, as every level has its own.
static inline int64_t integer_at(const char* data, int64_t at, bool is_long) {
  if (is_long) return reinterpret_cast<const long long*>(data)[at];
  return reinterpret_cast<const int*>(data)[at];
}

static constexpr int64_t tiles_of(const Rule& rule) { return (rule.value_dim + kBlockColumns - 1) / kBlockColumns; }

using RuleFunction = void (*)(const Rule& rule, int64_t begin, int64_t end);

// run: items [begin, end), each of kBlockColumns columns of the state of one head of one sequence.

PRECAST_CPU_FUNCTION(run, (const Rule& rule, int64_t begin, int64_t end))

}  // namespace delta_rule
}  // namespace precast
