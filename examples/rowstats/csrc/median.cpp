#include <algorithm>
#include <limits>
#include <vector>

#include "rowstats.h"

namespace rowstats {

void median(const float* rows, int64_t count, int64_t columns, float* out) {
  std::vector<float> copy(static_cast<size_t>(columns));
  for (int64_t row = 0; row < count; ++row, rows += columns, ++out) {
    std::copy(rows, rows + columns, copy.begin());
    if (std::any_of(copy.begin(), copy.end(), [](float value) { return value != value; })) {
      *out = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const auto middle = copy.begin() + (columns - 1) / 2;
    std::nth_element(copy.begin(), middle, copy.end());
    *out = *middle;
  }
}

}  // namespace rowstats
