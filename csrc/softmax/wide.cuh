// Rows wider than one block can hold.
#pragma once

#include "row.cuh"

namespace precast {
namespace softmax {

// The exponentials of a row without mask, relative to a base: 2^((e - base) rate). `top` is the element whose
// exponential is the largest, with the sign of the scale.
template <class T>
struct Exponentials {
  float sign, rate;

  DEVICE explicit Exponentials(const ForwardArgs& a)
      : sign(a.scale < 0.0f ? -1.0f : 1.0f), rate(a.scale * 1.44269504f) {}

  DEVICE float top(Vector v) const {
    const u32 flip = sign > 0.0f ? 0 : T::kBytes == 2 ? 0x80008000u : 0x80000000u;
#pragma unroll
    for (int w = 0; w < 4; ++w) v.word[w] ^= flip;
    return largest_of<T>(v);
  }

  // The differences from it do not overflow. If nothing is finite, exp(-inf) is 0, and NaN stays NaN.
  DEVICE float base(float top) const { return top == -infinity() ? 0.0f : top * sign; }

  // Adds those of a vector.
  DEVICE float add(const Vector& v, float base, float sum) const {
    float part = 0.0f;
    for_elements<T>(v, [&](int, float e) { part += exp2_of((e - base) * rate); });
    return sum + part;
  }

  // Stores those of a vector, each multiplied by a share.
  DEVICE void write(char* to, const Vector& v, float base, float share) const {
    store(to, combine<T>(v, v, [&](int, float e, float) { return exp2_of((e - base) * rate) * share; }));
  }
};

// A row without mask in the registers of a cluster of blocks. Each thread keeps up to V vectors as they are and takes
// their exponentials twice. The warps' maxima and their sums, each relative to its own maximum, are exchanged together.
template <class T, int V>
DEVICE void forward_wide(const ForwardArgs& a) {
#if PRECAST_HAS_CLUSTERS
  cluster_begins();
  next_launch_may_start();
  launch_before_has_ended();
  const ClusterWalk<V> walk(a.vectors);
  const Exponentials<T> of(a);
  walk.fetch(0, a.x + walk.row * a.x_stride);
  row_ends();
  cluster_has_begun();

  Rounds<> rounds;
  for (u32 row = walk.row; row < a.rows; row += walk.clusters) {
    Vector v[V];
    arrived<0>();
    walk.take(0, v);
    float total[2] = {-infinity(), 0.0f};
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) total[0] = fmaxf(total[0], of.top(v[j]));
    }
    if (row + walk.clusters < a.rows) walk.fetch(0, a.x + (row + walk.clusters) * a.x_stride);
    row_ends();
    total[0] = warp_max(total[0]);
    float base = of.base(total[0]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) total[1] = of.add(v[j], base, total[1]);
    }
    send_total(total, rounds);
    receive_total(total, of.rate * of.sign, rounds);
    const float share = 1.0f / total[1];
    base = total[0] * of.sign;

    char* y = a.y + row * a.y_stride;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) of.write(y + walk.offset(j), v[j], base, share);
    }
  }
#endif
}

// Many such rows. Three of them are in shared memory: one arrives, the exponentials of one are added, and one waits for
// the sums of the other blocks, whose way takes no time then.
template <class T, int V>
DEVICE void forward_walk(const ForwardArgs& a) {
#if PRECAST_HAS_CLUSTERS
  cluster_begins();
  next_launch_may_start();
  launch_before_has_ended();
  const ClusterWalk<V> walk(a.vectors);
  const Exponentials<T> of(a);
  const auto fetch = [&](u32 row, u32 buffer) {
    if (row < a.rows) walk.fetch(buffer, a.x + row * a.x_stride);
    row_ends();
  };
  fetch(walk.row, 0);
  fetch(walk.row + walk.clusters, 1);
  cluster_has_begun();

  Rounds<kMostSets> rounds;
  const auto write = [&](u32 row, u32 buffer) {
    float total[2];
    receive_total(total, of.rate * of.sign, rounds);
    const float share = 1.0f / total[1], base = total[0] * of.sign;
    char* y = a.y + row * a.y_stride;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) of.write(y + walk.offset(j), load_shared(walk.place(buffer, j)), base, share);
    }
  };
  u32 row = walk.row, buffer = 0, before = 2;
  for (; row < a.rows; row += walk.clusters) {
    arrived<1>();
    float total[2] = {-infinity(), 0.0f};
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) total[0] = fmaxf(total[0], of.top(load_shared(walk.place(buffer, j))));
    }
    total[0] = warp_max(total[0]);
    const float base = of.base(total[0]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) total[1] = of.add(load_shared(walk.place(buffer, j)), base, total[1]);
    }
    send_total(total, rounds);
    if (row != walk.row) write(row - walk.clusters, before);
    fetch(row + 2 * walk.clusters, before);
    const u32 next = 3 - buffer - before;
    before = buffer;
    buffer = next;
  }
  if (row != walk.row) write(row - walk.clusters, before);
#endif
}

}  // namespace softmax
}  // namespace precast
