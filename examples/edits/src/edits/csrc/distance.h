// The edit distance of two sequences, in plain C++: no torch here, so that it can be read and tested without.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace edits {

// The fewest insertions, deletions and substitutions that make `a` into `b`. One row of the table is kept: row[j] is
// the distance of what was read of `a` from the first j of `b`.
inline int64_t distance(const int64_t* a, int64_t a_length, const int64_t* b, int64_t b_length) {
  std::vector<int64_t> row(static_cast<size_t>(b_length) + 1);
  std::iota(row.begin(), row.end(), int64_t{0});
  for (int64_t i = 0; i < a_length; ++i) {
    int64_t diagonal = row[0];  // row[j - 1] before this turn
    row[0] = i + 1;
    for (int64_t j = 1; j <= b_length; ++j) {
      const int64_t substituted = diagonal + (a[i] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b_length];
}

}  // namespace edits
