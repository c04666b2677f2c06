// Bias and activation in one pass on the CPU, and their gradients. Compiled once per CPU level.
//
// A tile is up to kChunk adjacent elements. It has the bias of each element and the sums of gradients in buffers, in
// the order of the elements' blocks. Arithmetic is in float32, and for float64 in float64, one element at a time.
#include <math.h>

#include "../activations/functions.h"
#include "cpu.h"
#include "numbers.h"

#define IMAGE_INLINE PRECAST_INLINE
namespace precast {
namespace image {
// All are static, so that each level has its own. exp itself would need a newer C library than expm1 does.
PRECAST_INLINE double exponential(double x) { return 1.0 / (1.0 + expm1(-x)); }  // of arguments up to zero
PRECAST_INLINE double exponential_minus_1(double x) { return expm1(x); }
PRECAST_INLINE double log_plus_1(double x) { return log1p(x); }
}  // namespace image
}  // namespace precast
#include "curve.h"

namespace precast::image::PRECAST_CPU_LEVEL {
namespace {

constexpr int64_t kChunk = 512;
constexpr int64_t kShort = 128;  // rows up to this width share a tile
constexpr int64_t kTerms = 32;   // tiles whose gradients are added up in float

template <class Real>
struct Tile {
  alignas(64) Real bias[kChunk + kBlock], sums[kChunk + kBlock];
};

// ---- float64 ----

PRECAST_INLINE double clamped(double v, double clamp) { return v >= clamp ? clamp : v <= -clamp ? -clamp : v; }

void forward_tile(const BiasActWork& work, const Tile<double>& tile, const double* x, int64_t count, double* y) {
  for (int64_t i = 0; i < count; ++i) {
    y[i] = clamped(work.gain * curve<double>(work.activation, x[i] + tile.bias[i], work.alpha).value, work.clamp);
  }
}

void backward_tile(const BiasActWork& work, Tile<double>& tile, const double* grad, const double* saved, int64_t count,
                   double* y) {
  for (int64_t i = 0; i < count; ++i) {
    Point<double> at = {0, 1};
    if (saved != nullptr && work.of_output) {
      at.slope = saved[i] > 0 ? 1 : work.alpha;
    } else if (saved != nullptr) {
      at = curve<double>(work.activation, saved[i] + tile.bias[i], work.alpha);
    }
    const double v = work.of_output && saved != nullptr ? saved[i] : work.gain * at.value;
    y[i] = v >= work.clamp || v <= -work.clamp ? 0.0 : grad[i] * (work.gain * at.slope);
    tile.sums[i] += y[i];
  }
}

// ---- the curves of curve.h, sixteen lanes at a time ----

// exp(x) - 1 for x <= 0, of which e is the exponential. Near zero it is the series.
PRECAST_INLINE Floats exponential_minus_1(Floats x, Floats e) {
  const Floats one = broadcast(1.0f);
  Floats series = fma(x, broadcast(1.0f / 7), one);
  series = fma(x * broadcast(1.0f / 6), series, one);
  series = fma(x * broadcast(1.0f / 5), series, one);
  series = fma(x * broadcast(1.0f / 4), series, one);
  series = fma(x * broadcast(1.0f / 3), series, one);
  series = fma(x * broadcast(1.0f / 2), series, one);
  return where_less(x, broadcast(-0.35f), e - one, x * series);
}

// log(1 + e) for e in [0, 1]: twice the series of the inverse hyperbolic tangent of s.
PRECAST_INLINE Floats log_plus_1(Floats e) {
  const Floats s = e / plus(e, broadcast(2.0f)), z = s * s;
  Floats series = fma(z, broadcast(1.0f / 13), broadcast(1.0f / 11));
  series = fma(z, series, broadcast(1.0f / 9));
  series = fma(z, series, broadcast(1.0f / 7));
  series = fma(z, series, broadcast(1.0f / 5));
  series = fma(z, series, broadcast(1.0f / 3));
  series = fma(z, series, broadcast(1.0f));
  return (s + s) * series;
}

struct Bend {
  Floats value, slope;
};

PRECAST_INLINE Bend bend(int activation, Floats u) {
  const Floats zero = broadcast(0.0f), one = broadcast(1.0f), far = zero - magnitude(u);
  const Floats at = activation == kTanh ? far + far : far, e = exponential(at), share = one / plus(e, one);
  const Floats middle = e * share * share, upper = where_less(u, zero, e * share, share);
  if (activation == kElu || activation == kSelu) {
    const bool scaled = activation == kSelu;
    const Floats scale = broadcast(scaled ? 1.05070099f : 1.0f), depth = broadcast(scaled ? 1.75809934f : 1.0f);
    const Floats low = depth * exponential_minus_1(at, e);
    return {where_less(zero, u, scale * u, low), where_less(zero, u, scale, depth * e)};
  }
  if (activation == kTanh) {
    const Floats m = exponential_minus_1(at, e);
    return {where_less(u, zero, m, zero - m) * share, broadcast(4.0f) * middle};
  }
  if (activation == kSigmoid) return {upper, middle};
  if (activation == kSoftplus) return {plus(greater(u, zero), log_plus_1(e)), upper};
  return {u * upper, fma(u, middle, upper)};  // swish
}

// Zero instead of `slope` where v is at the clamp. NaN is not.
PRECAST_INLINE Floats unless_clamped(Floats slope, Floats v, float clamp) {
  return where_less(broadcast(nextafterf(clamp, -INFINITY)), magnitude(v), broadcast(0.0f), slope);
}

// Blocks of x + bias become results, or factors of the gradient. `activation` is constant where it is inlined.
PRECAST_INLINE void bend_all(const BiasActWork& work, int activation, int64_t count, float* u) {
  const Floats gain = broadcast(static_cast<float>(work.gain));
  const float clamp = static_cast<float>(work.clamp);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Bend here = bend(activation, load(u + i));
    const Floats v = gain * here.value;
    store(u + i, work.backward ? unless_clamped(gain * here.slope, v, clamp) : bounded(v, clamp));
  }
}

PRECAST_RARE void bend_tile(const BiasActWork& work, int64_t count, float* u) {
  const int64_t all = (count + kBlock - 1) / kBlock * kBlock;
  if (work.activation == kTanh) return bend_all(work, kTanh, all, u);
  if (work.activation == kSigmoid) return bend_all(work, kSigmoid, all, u);
  if (work.activation == kSoftplus) return bend_all(work, kSoftplus, all, u);
  if (work.activation == kSwish) return bend_all(work, kSwish, all, u);
  bend_all(work, work.activation, all, u);
}

// ---- float32 and narrower ----

// gain * (u, or below zero u times alpha)
struct Leaky {
  PRECAST_METHOD explicit Leaky(const BiasActWork& work)
      : gain(broadcast(static_cast<float>(work.gain))),
        alpha(broadcast(static_cast<float>(work.alpha))),
        clamp(static_cast<float>(work.clamp)),
        flat(work.activation == kRelu) {}
  PRECAST_METHOD Floats value(Floats u) const {
    const Floats zero = broadcast(0.0f);
    return gain * where_less(u, zero, flat ? zero : u * alpha, u);
  }
  // `sign` decides which slope holds.
  PRECAST_METHOD Floats slope(Floats sign, Floats v) const {
    return unless_clamped(where_less(broadcast(0.0f), sign, gain, gain * alpha), v, clamp);
  }
  Floats gain, alpha;
  float clamp;
  bool flat;
};

// Straight lines. `bias_at` gives the bias of a block of elements.
template <class T, class Bias>
PRECAST_INLINE void forward_lines(const BiasActWork& work, const T* x, int64_t count, T* y, const Bias& bias_at) {
  const Leaky leaky(work);
  const bool flat = work.activation == kLinear;
  each_block(0, count, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    const Block u = span.load(x + i) + bias_at(i);
    const Block v = flat ? u * Block{leaky.gain, leaky.gain} : Block{leaky.value(u.first), leaky.value(u.second)};
    span.store(y + i, Block{bounded(v.first, leaky.clamp), bounded(v.second, leaky.clamp)});
  });
}

template <class T>
void forward_tile(const BiasActWork& work, const Tile<float>& tile, const T* x, int64_t count, T* y) {
  if (work.activation <= kLeakyRelu) {
    return forward_lines(work, x, count, y, [&](int64_t i) PRECAST_EVERYWHERE { return load_block(tile.bias + i); });
  }
  alignas(64) float bent[kChunk];
  each_block(0, count, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    store_block(bent + i, span.load(x + i) + load_block(tile.bias + i));
  });
  bend_tile(work, count, bent);
  each_block(0, count, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    span.store(y + i, load_block(static_cast<const float*>(bent) + i));
  });
}

template <class T>
void backward_tile(const BiasActWork& work, Tile<float>& tile, const T* grad, const T* saved, int64_t count, T* y) {
  alignas(64) float slopes[kChunk];
  const Leaky leaky(work);
  const bool curved = work.activation > kLeakyRelu;
  each_block(0, count, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    Block slope = {leaky.gain, leaky.gain};
    if (saved != nullptr) {
      const Block at = span.load(saved + i), u = at + load_block(tile.bias + i);
      if (curved) {
        slope = u;
      } else if (work.of_output) {
        slope = {leaky.slope(at.first, at.first), leaky.slope(at.second, at.second)};
      } else {
        slope = {leaky.slope(u.first, leaky.value(u.first)), leaky.slope(u.second, leaky.value(u.second))};
      }
    }
    store_block(slopes + i, slope);
  });
  if (curved) bend_tile(work, count, slopes);
  each_block(0, count, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    const Block result = span.load(grad + i) * load_block(static_cast<const float*>(slopes) + i);
    span.store(y + i, result);
    store_block(tile.sums + i, load_block(tile.sums + i) + span.beyond(result, 0.0f, grad));
  });
}

// ---- tiles ----

template <class Real>
PRECAST_INLINE void clear_sums(Tile<Real>& tile, int64_t count) {
  for (int64_t i = 0; i < count; i += kStep<Real>) store_block(tile.sums + i, both(Real(0)));
}

// The biases of channels [first, first + count), in memory order.
template <class Real>
PRECAST_RARE void read_bias(const BiasActWork& work, int64_t first, int64_t count, Real* to) {
  with_number(work.bias_dtype, [&](auto zero) {
    using B = decltype(zero);
    const B* from = static_cast<const B*>(work.bias) + first;
    if constexpr (sizeof(B) == 8 && sizeof(Real) == 8) {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    } else if constexpr (sizeof(B) < 8 && sizeof(Real) == 4) {
      for (int64_t i = 0; i < count; i += kLanes) store(to + i, load_upto(from + i, count - i));
    }
  });
}

// `count` biases from channel `first` on, and again from there, in the order of blocks of T.
template <class T, class Real>
PRECAST_INLINE void set_bias(const BiasActWork& work, int64_t first, int64_t count, Tile<Real>& tile) {
  for (int64_t i = 0; i < kChunk; ++i) tile.bias[i] = 0;
  if (work.bias == nullptr) return;
  read_bias(work, first, count, tile.bias);
  for (int64_t i = count; i < kChunk; ++i) tile.bias[i] = tile.bias[i - count];
  for (int64_t i = 0; i < kChunk; i += kStep<T>) {
    store_block(tile.bias + i, in_order_of(load_block(tile.bias + i), static_cast<const T*>(nullptr)));
  }
}

template <class T, class Real>
PRECAST_INLINE void run_tile(const BiasActWork& work, Tile<Real>& tile, int64_t at, int64_t count) {
  const T *x = static_cast<const T*>(work.x) + at, *saved = static_cast<const T*>(work.saved);
  T* y = static_cast<T*>(work.y) + at;
  if (!work.backward) return forward_tile(work, tile, x, count, y);
  backward_tile(work, tile, x, saved == nullptr ? nullptr : saved + at, count, y);
}

// Rows that are shorter than a tile share it. Nothing is summed.
template <class T>
void short_rows(const BiasActWork& work, int64_t begin, int64_t end) {
  using Real = typename RealOf<T>::Type;
  const int64_t columns = work.columns, most = kChunk / columns;
  Tile<Real> tile;
  Real biases[kChunk + kLanes] = {};
  for (int64_t row = begin; row < end;) {
    const int64_t channel = row % work.channels, count = smaller(smaller(most, end - row), work.channels - channel);
    if (work.bias != nullptr) read_bias(work, channel, count, static_cast<Real*>(biases));
    for (int64_t k = 0; k < count; ++k) {  // each over the surplus of the one before
      for (int64_t i = 0; i < columns; i += kStep<Real>) store_block(tile.bias + k * columns + i, both(biases[k]));
    }
    for (int64_t i = 0; sizeof(T) < 4 && i < count * columns; i += kStep<T>) {
      store_block(tile.bias + i, in_order_of(load_block(tile.bias + i), static_cast<const T*>(nullptr)));
    }
    run_tile<T>(work, tile, row * columns, count * columns);
    row += count;
  }
}

template <class T>
void pieces(const BiasActWork& work, int64_t begin, int64_t end) {
  using Real = typename RealOf<T>::Type;
  if (work.columns <= kShort && !work.backward) return short_rows<T>(work, begin, end);
  const int64_t in_row = pieces_of(work.columns);
  Tile<Real> tile;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t row = index / in_row, first = (index - row * in_row) * kPiece;
    const int64_t last = smaller(work.columns, first + kPiece), at = row * work.columns;
    Real bias[kLanes] = {};
    if (work.bias != nullptr) read_bias(work, row % work.channels, 1, static_cast<Real*>(bias));
    if constexpr (sizeof(T) < 8) {
      if (work.activation <= kLeakyRelu && !work.backward) {
        forward_lines(work, static_cast<const T*>(work.x) + at + first, last - first,
                      static_cast<T*>(work.y) + at + first, [&](int64_t) PRECAST_EVERYWHERE { return both(bias[0]); });
        continue;
      }
    }
    const int64_t widest = smaller(kChunk, last - first);
    for (int64_t i = 0; i < widest; i += kStep<Real>) store_block(tile.bias + i, both(bias[0]));
    if (work.backward) clear_sums(tile, widest);
    for (int64_t column = first; column < last; column += kChunk) {
      run_tile<T>(work, tile, at + column, smaller(kChunk, last - column));
    }
    if (work.parts == nullptr) continue;
    double total = 0;
    if constexpr (sizeof(T) == 8) {
      for (int64_t i = 0; i < widest; ++i) total += tile.sums[i];
    } else {
      Block sums = both(0.0f);
      for (int64_t i = 0; i < widest; i += kBlock) sums = sums + load_block(tile.sums + i);
      total = static_cast<double>(sum(sums));
    }
    work.parts[index] = total;
  }
}

// Adds the sums of a tile to a line of doubles that begins again after `period` of them.
template <class T, class Real>
PRECAST_RARE void add_sums(Tile<Real>& tile, int64_t count, int64_t period, double* line) {
  for (int64_t i = 0; i < count; i += kStep<T>) {
    store_block(tile.sums + i, in_memory_order(load_block(tile.sums + i), static_cast<const T*>(nullptr)));
  }
  for (int64_t i = 0, k = 0; i < count; ++i, k = k + 1 < period ? k + 1 : 0) {
    line[k] += static_cast<double>(tile.sums[i]);
  }
  clear_sums(tile, count);
}

// Short rows share a tile.
template <class T>
void chunks(const BiasActWork& work, int64_t begin, int64_t end) {
  const int64_t columns = work.columns, width = columns < kChunk ? kChunk / columns * columns : columns;
  Tile<typename RealOf<T>::Type> tile;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t first = chunk * work.chunk_rows * columns;
    const int64_t last = smaller(work.rows, (chunk + 1) * work.chunk_rows) * columns;
    double* line = work.parts == nullptr ? nullptr : work.parts + chunk * columns;
    for (int64_t i = 0; i < columns && line != nullptr; ++i) line[i] = 0;
    for (int64_t column = 0; column < width; column += kChunk) {
      const int64_t count = smaller(kChunk, width - column), period = smaller(columns - column, count);
      if (chunk == begin || width > kChunk) set_bias<T>(work, column, period, tile);
      clear_sums(tile, count);
      int64_t terms = 0;
      for (int64_t at = first + column; at < last; at += width) {
        run_tile<T>(work, tile, at, smaller(count, last - at));
        if (++terms % kTerms == 0 && line != nullptr) add_sums<T>(tile, count, period, line + column);
      }
      if (line != nullptr) add_sums<T>(tile, count, period, line + column);
    }
  }
}

}  // namespace

void planes(const BiasActWork& work, int64_t begin, int64_t end) {
  with_number(work.dtype, [&](auto zero) { pieces<decltype(zero)>(work, begin, end); });
}

void columns(const BiasActWork& work, int64_t begin, int64_t end) {
  with_number(work.dtype, [&](auto zero) { chunks<decltype(zero)>(work, begin, end); });
}

void sum_parts(const double* parts, int64_t lines, int64_t channels, int64_t each, void* result, int dtype) {
  with_number(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t line = 0; line < lines; ++line) {
        const double* of_channel = parts + (line * channels + c) * each;
        for (int64_t i = 0; i < each; ++i) sum += of_channel[i];
      }
      T* const to = static_cast<T*>(result) + c;
      if constexpr (sizeof(T) == 8) {
        *to = sum;
      } else {
        store_part(to, broadcast(static_cast<float>(sum)), 1);
      }
    }
  });
}

}  // namespace precast::image::PRECAST_CPU_LEVEL
