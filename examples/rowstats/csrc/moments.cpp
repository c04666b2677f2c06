#include "rowstats.h"

namespace rowstats {

void moments(const float* rows, int64_t count, int64_t columns, float* out) {
  for (int64_t row = 0; row < count; ++row, rows += columns, out += 2) {
    double sum = 0;
    for (int64_t i = 0; i < columns; ++i) sum += rows[i];
    const double mean = sum / static_cast<double>(columns);
    double squares = 0;  // in a second pass: the difference of two large sums would lose what is asked for
    for (int64_t i = 0; i < columns; ++i) squares += (rows[i] - mean) * (rows[i] - mean);
    out[0] = static_cast<float>(mean);
    out[1] = static_cast<float>(squares / static_cast<double>(columns));
  }
}

}  // namespace rowstats
