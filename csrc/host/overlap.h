// Finds ranges that share memory. Tensors that overlap would be updated twice, or by two threads at once.
#pragma once

#include <algorithm>

#include "lists.h"

namespace precast {

inline bool begins_before(const Range& a, const Range& b) { return a.begin < b.begin; }

// Sorts the ranges. True if no two of them overlap.
inline bool sort_apart(Range* ranges, int64_t size) {
  if (!std::is_sorted(ranges, ranges + size, begins_before)) std::sort(ranges, ranges + size, begins_before);
  for (int64_t i = 1; i < size; ++i) {
    if (ranges[i - 1].end > ranges[i].begin) return false;
  }
  return true;
}

// True if `range` overlaps none of the ranges sorted by sort_apart().
inline bool is_apart(const Range& range, const Range* sorted, int64_t size) {
  const Range* const stop = sorted + size;
  const Range* const after = std::upper_bound(sorted, stop, range, begins_before);
  return (after == sorted || after[-1].end <= range.begin) && (after == stop || range.end <= after->begin);
}

}  // namespace precast
