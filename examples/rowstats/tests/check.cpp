// The archive without torch and without Python: what another C++ program links.
#include <cstdio>

#include "rowstats.h"

int main() {
  const float rows[] = {1, 2, 3, 6, 5, 5, 5, 5};
  float moments[4], extremes[4], medians[2];
  rowstats::moments(rows, 2, 4, moments);
  rowstats::extremes(rows, 2, 4, extremes);
  rowstats::median(rows, 2, 4, medians);
  std::printf("%g %g %g %g | %g %g %g %g | %g %g\n", moments[0], moments[1], moments[2], moments[3], extremes[0],
              extremes[1], extremes[2], extremes[3], medians[0], medians[1]);
  const bool right = moments[0] == 3 && moments[1] == 3.5f && moments[3] == 0 && extremes[1] == 6 && medians[0] == 2;
  return right ? 0 : 1;
}
