// Rows as float in the first cache, part by part, for CPU kernels that need a row's maximum and the sum of its
// exponentials. Compiled once per CPU level, like simd.h.
#pragma once

#include "exponential.h"
#include "row_simd.h"

namespace precast::PRECAST_CPU_LEVEL {

constexpr int64_t kKept = 4096;  // elements kept at a time: 16 KiB, whole blocks
constexpr float kInfinity = __builtin_inff();

// The elements of a row that exponentials() goes through: whole blocks, or half a block less where a block of T has its
// elements in the order of memory. The elements beyond the row are minus infinity.
template <class T>
PRECAST_INLINE int64_t padded(int64_t open, const T*) {
  return (open + kLanes - 1) / kLanes * kLanes;
}
PRECAST_INLINE int64_t padded(int64_t open, const bf16*) { return (open + kBlock - 1) / kBlock * kBlock; }

// Keeps `row.open` values of row.at(i, span) in the order of blocks of its elements. The last block is padded with
// minus infinity. Returns the maximum.
template <class Row>
PRECAST_RARE float keep(const Row& row, float* kept) {
  Block largest = both(-kInfinity);
  each_block(0, row.open, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    const Block z = row.at(i, span);
    store_block(kept + i, z);
    largest = greater(largest, z);
  });
  return largest_lane(largest);
}

// Replaces the kept values with exponentials and returns their sum. `count` is padded().
PRECAST_RARE double exponentials(float* kept, int64_t count, float largest) {
  const Block base = both(largest);
  double total = 0;
  for (int64_t start = 0; start < count; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, count);
    Block part = both(0.0f);
    int64_t i = start;
    for (; i + kBlock <= stop; i += kBlock) {
      const Block e = exponential(load_block(kept + i) - base);
      store_block(kept + i, e);
      part = part + e;
    }
    if (i < stop) {
      const Floats e = exponential(load(kept + i) - base.first);
      store(kept + i, e);
      part.first = part.first + e;
    }
    total += static_cast<double>(sum(part));
  }
  return total;
}

// The maximum of a row, and the sum of exponentials relative to it.
struct Total {
  float largest = -kInfinity;
  double sum = 0;
};

// Adds a kept part, whose maximum is `found`, and replaces it with exponentials. If the maximum is a new one, the sum
// so far is scaled to it. Before a number above minus infinity is found, nothing is subtracted: the difference of two
// infinities would be NaN.
PRECAST_INLINE void add_part(float found, float* kept, int64_t count, Total* all) {
  if (found > all->largest) {
    all->sum *= static_cast<double>(sum(exponential(broadcast(all->largest - found)))) / kLanes;
    all->largest = found;
  }
  all->sum += exponentials(kept, count, all->largest > -kInfinity ? all->largest : 0);
}

constexpr int64_t kParts = 64;  // of a row whose exponentials stay in the result

// A row's total, and the maximum that each part knew.
struct Known : Total {
  float known[kParts];
};

// Where a part's exponentials are kept: in the result, if that is float and the part has no tail, else in the buffer.
template <class T>
PRECAST_INLINE float* place_of(T*, float* kept, int64_t) {
  return kept;
}
PRECAST_INLINE float* place_of(float* y, float* kept, int64_t open) { return open == kKept ? y : kept; }

}  // namespace precast::PRECAST_CPU_LEVEL
