// Rows wider than one block can hold.
#pragma once

#include "row.cuh"

namespace precast {
namespace softmax {

// A row without mask in the registers of a cluster of blocks. Each thread keeps up to V vectors as they are and takes
// their exponentials twice. One barrier of the cluster: the warps' maxima and their sums, each relative to its own
// maximum, are exchanged together.
template <class T, int V>
DEVICE void forward_wide(const ForwardArgs& a) {
#if PRECAST_HAS_CLUSTERS
  cluster_begins();
  next_launch_may_start();
  launch_before_has_ended();
  const ClusterWalk<V> walk(a.vectors);
  const float sign = a.scale < 0.0f ? -1.0f : 1.0f, rate = a.scale * 1.44269504f;
  walk.fetch(0, a.x + walk.row * a.x_stride);
  row_ends();
  cluster_has_begun();

  Exchange* lines = exchange_lines();
  for (u32 row = walk.row; row < a.rows; row += walk.clusters) {
    Vector v[V];
    arrived<0>();
    walk.take(0, v);
    // The element whose exponential is the largest. The differences from it do not overflow.
    float top = -infinity();
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) for_elements<T>(v[j], [&](int, float e) { top = fmaxf(top, e * sign); });
    }
    if (row + walk.clusters < a.rows) walk.fetch(0, a.x + (row + walk.clusters) * a.x_stride);
    row_ends();
    top = warp_max(top);
    float base = top == -infinity() ? 0.0f : top * sign;  // then exp(-inf) is 0, and NaN stays NaN
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) for_elements<T>(v[j], [&](int, float e) { sum += exp2_of((e - base) * rate); });
    }
    float total[2] = {top, sum};
    cluster_total(total, rate * sign, lines);
    const float share = 1.0f / total[1];
    base = total[0] * sign;

    char* y = a.y + row * a.y_stride;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!walk.has(j)) continue;
      store(y + walk.offset(j),
            combine<T>(v[j], v[j], [&](int, float e, float) { return exp2_of((e - base) * rate) * share; }));
    }
    lines = exchange_lines() + (lines == exchange_lines() ? 2 : 0);  // a block that runs ahead writes to others
  }
#endif
}

}  // namespace softmax
}  // namespace precast
