// Attention over a paged cache on the CPU: the interface between host.cpp, which handles tensors and threads, and
// cpu.cpp, which handles vectors and is compiled once per CPU level. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"
#include "args.h"

namespace precast {
namespace decode_attention {

constexpr int64_t kChunk = 512;  // keys per work item: the split does not depend on the number of threads

// A work item is a chunk of keys for one sequence and one key head, for all rows that share the head.
struct Work {
  Attention call;
  const int64_t* lengths;  // checked by host.cpp
  const int64_t* starts;   // the first chunk number of each sequence, followed by the total number of chunks
  const float* narrow;     // the 256 values of an 8-bit type
  float* parts;            // per work item and row: value_width sums, the maximum, the sum of weights
  float* sums;             // per row of the result; host.cpp takes the logarithm
};

using WorkFunction = void (*)(const Work& work, int64_t begin, int64_t end);

// attend_chunks: the work items that begin among keys [begin, end) of all items, in the order of sequences, chunks and
// key heads. merge_rows: rows of the result.

PRECAST_CPU_FUNCTION(attend_chunks, (const Work& work, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(merge_rows, (const Work& work, int64_t begin, int64_t end))

}  // namespace decode_attention
}  // namespace precast
