// Cross entropy of rows with its gradient, thirty-two elements at a time. Compiled once per CPU level.
//
// A row is read part by part for its maximum and its sum. The gradient, which may lie over it, takes the exponentials
// that were kept: all of a row that fits, and of longer ones in float32, where they stay in the place of the gradient.
// Other rows are read again.
#include "cpu.h"

#include "../cpu/kept_row.h"

namespace precast::losses::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

// A part of a row, as keep() reads it.
template <class T>
struct Part32 {
  const T* x;
  int64_t open;

  template <class Span>
  PRECAST_METHOD Block at(int64_t i, Span span) const {
    return span.beyond(span.load(x + i), -kInfinity, x);
  }
};

// A row's total and parts, and its last part's exponentials.
struct Kept : Known {
  alignas(64) float last[kKept];
};

template <class T>
bool stays(const T* grad, int64_t columns) {
  return grad != nullptr && columns <= (sizeof(T) == sizeof(float) ? kParts * kKept : kKept);
}

template <class T>
void take_total(const T* x, int64_t columns, T* grad, Kept* all) {
  const bool kept = stays(grad, columns);
  for (int64_t start = 0; start < columns; start += kKept) {
    const Part32<T> part = {x + start, smaller(columns - start, kKept)};
    float* place = kept ? place_of(grad + start, all->last, part.open) : all->last;
    add_part(keep(part, place), place, padded(part.open, part.x), all);
    if (kept) all->known[start / kKept] = all->largest;
  }
}

// The sum of a row's logits, each times its weight.
template <class T>
double weighted(const T* x, const float* weight, int64_t columns) {
  const Columns<T> weights = {weight, true};
  double total = 0;
  for (int64_t start = 0; start < columns; start += kSumBlock) {
    Block part = both(0.0f);
    each_block(start, smaller(start + kSumBlock, columns), [&](int64_t i, auto span) PRECAST_EVERYWHERE {
      const Block z = span.load(x + i);
      part = weight != nullptr ? fma(z, weights.at(i, span), part) : part + z;
    });
    total += static_cast<double>(sum(part));
  }
  return total;
}

// The natural logarithm, the same bits with every C library: of the mantissa by the series of 2 artanh(s), to 1e-13.
double logarithm(double x) {
  if (!(x > 0) || x == static_cast<double>(kInfinity)) return x == 0 ? -static_cast<double>(kInfinity) : x;
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  int64_t power = static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffff) | 0x3ff0000000000000;
  double mantissa;
  __builtin_memcpy(&mantissa, &bits, sizeof(mantissa));
  if (mantissa > 1.4142135623730951) {
    mantissa /= 2;
    ++power;
  }
  const double s = (mantissa - 1) / (mantissa + 1), square = s * s;
  double series = 0;
  for (int n = 15; n >= 1; n -= 2) series = series * square + 1.0 / n;
  return static_cast<double>(power) * 0.6931471805599453 + 2 * s * series;
}

// The numbers from which a row's gradient follows; exponentials are of differences from `base`.
struct Slope {
  float base, share, spread, pull;
};

template <class T>
void write_gradient(const T* x, const float* weight, int64_t columns, const Slope& slope, T* grad) {
  const Columns<T> weights = {weight, true};
  const Block base = both(slope.base), share = both(slope.share), spread = both(-slope.spread);
  each_block(0, columns, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    const Block e = exponential(span.load(x + i) - base);
    const Block less = weight != nullptr ? weights.at(i, span) * spread : spread;
    span.store(grad + i, fma(e, share, less));
  });
}

// The same from what take_total() kept.
template <class T>
void write_from_kept(Kept& all, const float* weight, int64_t columns, const Slope& slope, T* grad) {
  const Columns<T> weights = {weight, true};
  const Block spread = both(-slope.spread);
  for (int64_t start = 0; start < columns; start += kKept) {
    const int64_t open = smaller(columns - start, kKept);
    const float known = all.known[start / kKept], base = known > -kInfinity ? known : 0;
    const Block share = both(slope.share * (sum(exponential(broadcast(base - slope.base))) / kLanes));
    const float* place = place_of(grad + start, all.last, open);
    each_block(0, open, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
      const Block less = weight != nullptr ? weights.at(start + i, span) * spread : spread;
      span.store(grad + start + i, fma(load_block(place + i), share, less));
    });
  }
}

template <class T>
void write_zeros(T* grad, int64_t columns) {
  each_block(0, columns, [&](int64_t i, auto span) PRECAST_EVERYWHERE { span.store(grad + i, both(0.0f)); });
}

template <class T>
float element(const T* x) {
  Block one = load_block_part(x, 1);
  float first[kBlock];
  store_block(first, one);
  return first[0];
}

template <class T>
void put(T* to, float value) {
  store_block_part(to, both(value), 1);
}

// What one row needs besides its vectors is computed in double, so that no level rounds it otherwise.
template <class T>
void row_losses(const LossRows& rows, int64_t row) {
  const T* x = static_cast<const T*>(rows.x) + row * rows.x_stride;
  T* grad = rows.grad != nullptr ? static_cast<T*>(rows.grad) + row * rows.grad_stride : nullptr;
  const int64_t target = target_at(rows.target, rows.narrow_target, row), columns = rows.columns;
  const bool inside = target >= 0 && target < columns;
  const double logit = inside ? element(x + target) : 0;  // before the gradient is written over it
  const double of_target = inside && rows.weight != nullptr ? rows.weight[target] : 1;
  Kept all;
  Slope slope;
  if (rows.given != nullptr) {
    const float* from = rows.given + row;
    slope = {from[0], from[rows.rows], from[2 * rows.rows], from[3 * rows.rows]};
  } else {
    const double dot = rows.smoothing != 0 ? weighted(x, rows.weight, columns) : 0;
    take_total(x, columns, grad, &all);
    const double top = all.largest > -kInfinity ? all.largest : 0, log_sum = logarithm(all.sum), lse = top + log_sum;
    const double scale = rows.factors != nullptr ? rows.factors[row * rows.factor_step] : 1;
    const double smoothing = rows.smoothing;
    rows.lse[row] = static_cast<float>(lse);
    if (target == rows.ignore_index) {
      rows.losses[row] = static_cast<float>(scale * 0);  // NaN if no row counts: then scale is infinite
      if (grad != nullptr) write_zeros(grad, columns);
      return;
    }
    const double weights = rows.sum != nullptr ? *rows.sum : static_cast<double>(columns);
    const double kept = (1 - smoothing) * of_target, of_each = smoothing / static_cast<double>(columns);
    double loss = kept * (log_sum - (logit - top)) + rows.z_loss * lse * lse;
    if (smoothing != 0) loss += of_each * (weights * lse - dot);
    rows.losses[row] = static_cast<float>(scale * loss);
    const double sum = kept + of_each * weights + 2 * rows.z_loss * lse;
    slope = {static_cast<float>(top), static_cast<float>(scale * sum / all.sum), static_cast<float>(scale * of_each),
             static_cast<float>(scale * kept)};
  }
  if (grad == nullptr) return;
  if (rows.given == nullptr && stays(grad, columns)) {
    write_from_kept(all, rows.weight, columns, slope, grad);
  } else {
    write_gradient(x, rows.weight, columns, slope, grad);
  }
  if (!inside) return;
  const float e = sum(exponential(broadcast(static_cast<float>(logit) - slope.base))) / kLanes;
  const double less = static_cast<double>(slope.spread) * of_target + slope.pull;
  put(grad + target, static_cast<float>(static_cast<double>(e) * slope.share - less));
}

}  // namespace

void losses(const LossRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) {
    for (int64_t row = begin; row < end; ++row) row_losses<decltype(zero)>(rows, row);
  });
}

void scale_rows(const ScaleRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = begin; row < end; ++row) {
      const float factor = rows.factor[row * rows.factor_step];
      if (factor == 1) continue;
      T* grad = static_cast<T*>(rows.grad) + row * rows.grad_stride;
      each_block(0, rows.columns, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
        span.store(grad + i, span.load(grad + i) * both(factor));
      });
    }
  });
}

}  // namespace precast::losses::PRECAST_CPU_LEVEL
