// Cross entropy of rows of logits with its gradient, on the GPU. args.h has the formulas; see host.cpp for which kernel
// serves which shape.
//
// All arithmetic is in float32, and a gradient is rounded once. The gradient may lie over the logits: a thread has read
// what it writes over, and nobody else reads it.
#include "../gpu/exponentials.cuh"
#include "../gpu/shifted.cuh"
#include "args.h"
#include "entries.h"

namespace precast {
namespace losses {

// The column of a row's target, or one of these.
constexpr int kIgnored = -1, kNoClass = -2, kElsewhere = -3;

DEVICE int target_of(const LossArgs& a, u32 row) {
  const i64 target = a.narrow_target != 0 ? static_cast<i64>(reinterpret_cast<const int*>(a.target)[row])
                                          : reinterpret_cast<const i64*>(a.target)[row];
  if (a.given == nullptr && target == a.ignore_index) return kIgnored;
  if (target >= 0 && target < a.columns) return static_cast<int>(target);
  return a.given == nullptr ? kNoClass : kElsewhere;
}

// What the target makes of a row.
struct Target {
  int at;
  float scale, kept, of_each, weights;

  DEVICE Target(const LossArgs& a, u32 row, int target)
      : at(target),
        scale(a.factors != nullptr ? a.factors[row * a.factor_step] : 1.0f),
        kept((1.0f - a.smoothing) * (target >= 0 && a.weight != nullptr ? a.weight[target] : 1.0f)),
        of_each(a.of_each),
        weights(a.sum != nullptr ? *a.sum : static_cast<float>(a.columns)) {
    if (target == kNoClass) scale = __uint_as_float(0x7fffffffu);  // NaN
  }
};

// The numbers from which a row's gradient follows. Exponentials are of differences from `base`.
struct Slope {
  float base, share, spread, pull;

  DEVICE static Slope given(const LossArgs& a, u32 row) {
    const float* from = a.given + row;
    return {from[0], from[a.row_count], from[2 * a.row_count], from[3 * a.row_count]};
  }
  // `sum` is of exponentials relative to `top`.
  DEVICE static Slope of(const LossArgs& a, const Target& target, float top, float sum) {
    const float all = target.kept + target.of_each * target.weights + 2.0f * a.z_loss * (top + logf(sum));
    return {top, target.scale * all * reciprocal_of(sum), target.scale * target.of_each, target.scale * target.kept};
  }
  DEVICE float at(float x, float weight) const { return fmaf(exponential(x - base), share, -(spread * weight)); }
};

// Called by the thread of a row that has the logit of the target. `sum` is of exponentials relative to `top`, `dot` the
// weighted sum of the logits.
DEVICE void write_loss(const LossArgs& a, u32 row, const Target& target, float logit, float top, float sum, float dot) {
  const float log_sum = logf(sum), lse = top + log_sum;
  float loss = 0.0f;
  if (target.at != kIgnored) loss = target.kept * (log_sum - (logit - top)) + a.z_loss * lse * lse;
  if (target.at != kIgnored && a.smoothing != 0.0f) loss += target.of_each * (target.weights * lse - dot);
  a.losses[row] = target.scale * loss;  // NaN for an ignored row of a batch without any other
  a.lse[row] = lse;
}

// Called by the same thread after it has written what holds the target in the gradient.
template <class T>
DEVICE void write_target(const LossArgs& a, u32 row, int at, const Slope& slope, float logit) {
  const float weight = a.weight != nullptr ? a.weight[at] : 1.0f;
  T::store(a.grad + row * a.grad_stride + static_cast<i64>(at) * T::kBytes, slope.at(logit, weight) - slope.pull);
}

DEVICE float weight_at(const LossArgs& a, i64 column) { return a.weight != nullptr ? a.weight[column] : 1.0f; }

// The sum of a vector's logits, each times its weight.
template <class T>
DEVICE float weighted(const LossArgs& a, const Vector& v, i64 column) {
  float sum = 0.0f;
  for_elements<T>(v, [&](int i, float e) { sum = fmaf(e, weight_at(a, column + i), sum); });
  return sum;
}

template <class T>
DEVICE Vector gradient(const LossArgs& a, const Slope& slope, const Vector& v, i64 column, bool spreads) {
  if (spreads) {
    return combine<T>(v, v, [&](int i, float e, float) { return slope.at(e, weight_at(a, column + i)); });
  }
  return combine<T>(v, v, [&](int, float e, float) { return exponential(e - slope.base) * slope.share; });
}

// A row in the registers of one block, or of one warp for short rows. Each thread has V vectors, blockDim.x apart.
// kShifted: rows begin anywhere, and what a vector holds beside its row counts as minus infinity.
template <class T, int V, bool kShifted = false>
DEVICE void loss_row(const LossArgs& a) {
  alignas(16) __shared__ float shared[3][32];
  begin_launch(a.early);
  constexpr int kPer = T::kPerVector;
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const u32 first = threadIdx.x, step = blockDim.x, bytes = static_cast<u32>(a.columns) * T::kBytes;
  const char* x = a.x + row * a.x_stride;
  const Shifted<T> of(x, bytes);
  const u32 vectors = kShifted ? of.count : a.vectors, lead = kShifted ? of.lead / T::kBytes : 0;
  const int at = target_of(a, row);
  const auto has = [&](int j) { return first + j * step < vectors; };
  Vector v[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    if (!has(j)) continue;
    if constexpr (kShifted) {
      v[j] = of.load_from(x, k, a.x, a.x + static_cast<i64>(a.rows - 1) * a.x_stride + bytes);
      if (!of.whole(k)) {
        v[j] = combine<T>(v[j], v[j], [&](int i, float e, float) { return of.holds(k, i, bytes) ? e : -infinity(); });
      }
    } else {
      v[j] = load(x + k * 16);
    }
  }
  const bool writes = at >= 0 ? (at + lead) / kPer % step == first : first == 0;  // the target's vector, and gradient
  const float logit = writes && at >= 0 ? T::load(x + static_cast<i64>(at) * T::kBytes) : 0.0f;

  float top = -infinity(), sum = 0.0f, dot = 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (has(j)) for_elements<T>(v[j], [&](int, float e) { top = fmaxf(top, e); });
  }
  top = row_max(top, shared[0]);
  const float base = top == -infinity() ? 0.0f : top;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (has(j)) for_elements<T>(v[j], [&](int, float e) { sum += exponential(e - base); });
  }
  sum = row_sum(sum, shared[1]);
  // The column of a vector's first element, and those of its elements that the row has.
  const auto column = [&](int j) { return static_cast<i64>(first + j * step) * kPer - lead; };
  const auto in_row = [&](int j, int i) { return !kShifted || of.holds(first + j * step, i, bytes); };
  if (a.smoothing != 0.0f) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      for_elements<T>(v[j], [&](int i, float e) {
        if (in_row(j, i)) dot = fmaf(e, weight_at(a, column(j) + i), dot);
      });
    }
    dot = row_sum(dot, shared[2]);
  }
  const Target target(a, row, at);
  if (writes) write_loss(a, row, target, logit, base, sum, dot);
  if (a.grad == nullptr) return;
  const Slope slope = Slope::of(a, target, base, sum);
  char* grad = a.grad + row * a.grad_stride;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (!has(j)) continue;
    Vector result = {{0, 0, 0, 0}};
    if (at != kIgnored && a.smoothing != 0.0f) {
      result = combine<T>(v[j], v[j], [&](int i, float e, float) {
        return in_row(j, i) ? slope.at(e, weight_at(a, column(j) + i)) : 0.0f;
      });
    } else if (at != kIgnored) {
      result = gradient<T>(a, slope, v[j], 0, false);
    }
    if constexpr (kShifted) {
      of.store_to(grad, first + j * step, result);
    } else {
      store(grad + (first + j * step) * 16, result);
    }
  }
  if (writes && at >= 0) write_target<T>(a, row, at, slope, logit);
}

// Any row, read twice: once for maximum and sum together, and again for the gradient. Elements that can be moved by 16
// bytes come first (a.vectors, which may be 0), then the rest one at a time.
template <class T>
DEVICE void loss_any(const LossArgs& a) {
  alignas(16) __shared__ float shared[3][32];
  begin_launch(a.early);
  constexpr int kPer = T::kPerVector, kSteps = 4;
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const i64 first = threadIdx.x, step = blockDim.x;
  const char* x = a.x + row * a.x_stride;
  const Peeled<T> of(a, x, a.columns);
  const int at = target_of(a, row);
  const auto logit = [&](i64 i) { return T::load(x + of.column(i) * T::kBytes); };
  const auto column_of = [&](i64 vector) { return of.head + vector * kPer; };
  const bool spreads = a.smoothing != 0.0f || a.given != nullptr;

  // Which thread writes the target's element below, so that it may write it once more.
  const i64 place = at - of.head;
  const bool in_vector = place >= 0 && place < of.vectors * kPer;
  const i64 other = place < 0 ? at : at - of.vectors * kPer;
  const bool writes = at < 0 ? first == 0 : (in_vector ? place / kPer : other) % step == first;
  const float at_target = writes && at >= 0 ? T::load(x + static_cast<i64>(at) * T::kBytes) : 0.0f;

  Slope slope;
  if (a.given != nullptr) {
    slope = Slope::given(a, row);
  } else {
    Running running = {-infinity(), 0.0f};
    float dot = 0.0f;
#pragma unroll 1
    for (i64 i = first; i < of.vectors; i += step) {
      const Vector v = load(x + of.byte(i));
      float z[kPer];
      for_elements<T>(v, [&](int k, float e) { z[k] = e; });
      running.add(z);
      if (a.smoothing != 0.0f) dot += weighted<T>(a, v, column_of(i));
    }
#pragma unroll 1
    for (i64 i = first; i < of.others; i += kSteps * step) {
      float z[kSteps];
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const bool has = i + k * step < of.others;
        z[k] = has ? logit(i + k * step) : -infinity();
        if (has && a.smoothing != 0.0f) dot = fmaf(z[k], weight_at(a, of.column(i + k * step)), dot);
      }
      running.add(z);
    }
    const float top = row_max(running.largest, shared[0]), base = top == -infinity() ? 0.0f : top;
    const float sum = row_sum(running.sum * exponential(running.largest - base), shared[1]);
    dot = row_sum(dot, shared[2]);
    const Target target(a, row, at);
    if (writes) write_loss(a, row, target, at_target, base, sum, dot);
    if (a.grad == nullptr) return;
    slope = Slope::of(a, target, base, sum);
  }

  char* grad = a.grad + row * a.grad_stride;
#pragma unroll 1
  for (i64 i = first; i < of.vectors; i += step) {
    Vector result = {{0, 0, 0, 0}};
    if (at != kIgnored) result = gradient<T>(a, slope, load(x + of.byte(i)), column_of(i), spreads);
    store(grad + of.byte(i), result);
  }
#pragma unroll 1
  for (i64 i = first; i < of.others; i += step) {
    const i64 column = of.column(i);
    T::store(grad + column * T::kBytes, at == kIgnored ? 0.0f : slope.at(logit(i), weight_at(a, column)));
  }
  if (writes && at >= 0) write_target<T>(a, row, at, slope, at_target);
}

// The larger of each pair of elements; NaN is ignored. A vector of minus infinity.
template <class T>
DEVICE Vector larger(const Vector& a, const Vector& b) {
#if PRECAST_ARCH >= 900
  if constexpr (T::kBytes == 2) {
    Vector v;
#pragma unroll
    for (int w = 0; w < 4; ++w) v.word[w] = T::larger(a.word[w], b.word[w]);
    return v;
  }
#endif
  return combine<T>(a, b, [](int, float p, float q) { return fmaxf(p, q); });
}

template <class T>
DEVICE Vector least() {
  const Vector none = {{0, 0, 0, 0}};
  return combine<T>(none, none, [](int, float, float) { return -infinity(); });
}

// A row in the registers of a cluster of blocks. Each thread keeps up to V vectors as they are and takes their
// exponentials twice, as softmax does. Label smoothing with weights is left to the kernel for any row.
template <class T, int V>
DEVICE void loss_wide(const LossArgs& a) {
#if PRECAST_HAS_CLUSTERS
  cluster_begins();
  next_launch_may_start();
  launch_before_has_ended();
  const ClusterWalk<V> walk(a.vectors);
  // For 10.x and newer the compiler has no registers for the addresses of single copies (kCopiesAtOnce).
  constexpr bool kOneByOne = kCopiesAtOnce >= V;
  const auto fetch = [&](int j, u32 row) {
    if (row < a.rows && walk.has(j)) copy(walk.place(0, j), a.x + row * a.x_stride + walk.offset(j));
    row_ends();
  };
  const auto fetch_all = [&](u32 row) {
    if (row < a.rows) walk.fetch(0, a.x + row * a.x_stride);
    row_ends();
  };
  if (!kOneByOne) fetch_all(walk.row);
#pragma unroll
  for (int j = 0; kOneByOne && j < V; ++j) fetch(j, walk.row);
  cluster_has_begun();

  Rounds<> rounds;
  for (u32 row = walk.row; row < a.rows; row += walk.clusters) {
    const int at = target_of(a, row);
    // Vector by vector: the place of one is free for the next row's as soon as it is here and has been used.
    Vector v[V], most = least<T>();
    if (!kOneByOne) arrived<0>();
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (kOneByOne) arrived<V - 1>();
      if (walk.has(j)) {
        v[j] = load_shared(walk.place(0, j));
        most = larger<T>(most, v[j]);
      }
      if (kOneByOne) fetch(j, row + walk.clusters);
    }
    if (!kOneByOne) fetch_all(row + walk.clusters);
    float total[3] = {-infinity(), 0.0f, 0.0f};
    for_elements<T>(most, [&](int, float e) { total[0] = fmaxf(total[0], e); });
    total[0] = warp_max(total[0]);
    float base = total[0] == -infinity() ? 0.0f : total[0];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (walk.has(j)) for_elements<T>(v[j], [&](int, float e) { total[1] += exponential(e - base); });
    }
    if (a.smoothing != 0.0f) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (walk.has(j)) for_elements<T>(v[j], [&](int, float e) { total[2] += e; });
      }
    }
    send_total(total, rounds);
    receive_total(total, 1.44269504f, rounds);

    base = total[0] == -infinity() ? 0.0f : total[0];
    const Target target(a, row, at);
    bool writes = at < 0 && walk.first == 0;
#pragma unroll
    for (int j = 0; j < V; ++j) writes |= at >= 0 && walk.first + j * walk.step == static_cast<u32>(at) / T::kPerVector;
    float logit = 0.0f;
    if (writes) {
      if (at >= 0) logit = T::load(a.x + row * a.x_stride + static_cast<i64>(at) * T::kBytes);
      write_loss(a, row, target, logit, base, total[1], total[2]);
    }
    if (a.grad == nullptr) continue;
    const Slope slope = Slope::of(a, target, base, total[1]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!walk.has(j)) continue;
      Vector result = {{0, 0, 0, 0}};
      if (at != kIgnored) result = combine<T>(v[j], v[j], [&](int, float e, float) { return slope.at(e, 1.0f); });
      store(a.grad + row * a.grad_stride + walk.offset(j), result);
    }
    if (writes && at >= 0) write_target<T>(a, row, at, slope, logit);
  }
#endif
}

// A launch has few blocks if one factor serves all rows: most often it is 1, and the blocks have nothing to do.
template <class T>
DEVICE void scale_row(const ScaleArgs& a) {
  for (u32 row = blockIdx.x * blockDim.y + threadIdx.y; row < a.rows; row += gridDim.x * blockDim.y) {
    const float factor = a.factor[row * a.factor_step];
    if (factor == 1.0f) {
      if (a.factor_step == 0) return;
      continue;
    }
    char* grad = a.grad + row * a.grad_stride;
    const Peeled<T> of(a, grad, a.columns);
#pragma unroll 2
    for (i64 i = threadIdx.x; i < of.vectors; i += blockDim.x) {
      const Vector v = load(grad + of.byte(i));
      store(grad + of.byte(i), combine<T>(v, v, [&](int, float e, float) { return e * factor; }));
    }
#pragma unroll 1
    for (i64 i = threadIdx.x; i < of.others; i += blockDim.x) {
      char* p = grad + of.column(i) * T::kBytes;
      T::store(p, T::load(p) * factor);
    }
  }
}

CROSS_ENTROPY_KERNELS(KERNEL)

}  // namespace losses
}  // namespace precast
