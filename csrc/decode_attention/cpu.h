// Attention over a paged cache on the CPU: the seam between host.cpp, which knows tensors and threads, and cpu.cpp,
// which knows vectors and is compiled once for each CPU level. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../common/cpu_level.h"
#include "args.h"

namespace precast {
namespace decode_attention {

constexpr int64_t kChunk = 512;  // keys of a work item: the split does not depend on the number of threads

// A work item is a chunk of keys of one sequence and one key head, for all rows that share the head.
struct Work {
  Attention call;
  const int64_t* lengths;  // checked
  const int64_t* starts;   // of each sequence, its first chunk among those of all sequences; then their number
  const float* narrow;     // the 256 numbers of an 8-bit type
  float* parts;            // of each work item and row: value_width sums, the maximum, the sum of weights
  float* sums;             // of each row of the result, for the logarithm that host.cpp takes
};

using WorkFunction = void (*)(const Work& work, int64_t begin, int64_t end);

// attend_chunks: work items [begin, end), key heads of one chunk side by side. merge_rows: rows of the result.
#define PRECAST_DECODE_CPU_LEVEL(level)                             \
  namespace level {                                                 \
  void attend_chunks(const Work& work, int64_t begin, int64_t end); \
  void merge_rows(const Work& work, int64_t begin, int64_t end);    \
  }

PRECAST_EACH_CPU_LEVEL(PRECAST_DECODE_CPU_LEVEL)

#undef PRECAST_DECODE_CPU_LEVEL

}  // namespace decode_attention
}  // namespace precast
