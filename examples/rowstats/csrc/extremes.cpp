#include <limits>

#include "rowstats.h"

namespace rowstats {

void extremes(const float* rows, int64_t count, int64_t columns, float* out) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t row = 0; row < count; ++row, rows += columns, out += 2) {
    float least = kInfinity, greatest = -kInfinity;
    for (int64_t i = 0; i < columns; ++i) {
      // A NaN is taken, and nothing is less or greater than it afterwards.
      const bool nan = rows[i] != rows[i];
      if (nan || rows[i] < least) least = rows[i];
      if (nan || rows[i] > greatest) greatest = rows[i];
    }
    out[0] = least;
    out[1] = greatest;
  }
}

}  // namespace rowstats
