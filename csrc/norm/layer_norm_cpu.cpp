// LayerNorm forward and backward, thirty-two elements at a time. Compiled once per CPU level.
//
// Each row is read twice, the second time from the caches: for its mean and variance, and for the result. Sums run in
// float over short blocks and in double over the blocks, so the error does not grow with the width of a row. An absent
// weight or bias is a well-predicted branch inside the loops rather than a template argument, because the user waits
// for compilation.
#include "../cpu/column_simd.h"
#include "cpu.h"

namespace precast::layer_norm::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

// d = x - mean over a row, and h = grad * weight.
struct Sums {
  double deviations, squares;  // of d
  double gradients, products;  // of h, and of h * d
};

struct Statistics {
  float mean, inverse_deviation;
};

// The sums for an assumed mean. Without a gradient, the last two are zero.
template <bool kGradient, class T>
PRECAST_INLINE Sums sum_row(const T* x, const T* grad, const Columns<T>& weight, float mean, int64_t hidden) {
  Sums total = {0, 0, 0, 0};
  const Block middle = both(mean);
  for (int64_t start = 0; start < hidden; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, hidden);
    Block deviations = both(0.0f), squares = deviations, gradients = deviations, products = deviations;
    const auto of_x = [&](int64_t i, auto span) PRECAST_EVERYWHERE {
      const Block d = span.beyond(span.load(x + i) - middle, 0, x);
      deviations = deviations + d;
      squares = fma(d, d, squares);
    };
    const auto of_grad = [&](int64_t i, auto span) PRECAST_EVERYWHERE {
      const Block d = span.beyond(span.load(x + i) - middle, 0, x);
      const Block g = span.load(grad + i), h = weight.absent() ? g : g * weight.at(i, span);
      gradients = gradients + h;
      products = fma(h, d, products);
    };
    if (kGradient && PRECAST_WIDTH == 16) {
      each_block(start, stop, [&](int64_t i, auto span) PRECAST_EVERYWHERE { of_x(i, span), of_grad(i, span); });
    } else {  // four sums at a time are too many for sixteen registers
      each_block(start, stop, of_x);
      if (kGradient) each_block(start, stop, of_grad);
    }
    total.deviations += static_cast<double>(sum(deviations));
    total.squares += static_cast<double>(sum(squares));
    if (!kGradient) continue;
    total.gradients += static_cast<double>(sum(gradients));
    total.products += static_cast<double>(sum(products));
  }
  return total;
}

struct Row {
  Statistics of;
  Sums sums;
  double shift;  // the mean minus the one that was assumed for the sums
};

PRECAST_INLINE double square(double a) { return a * a; }

// One pass over a row: the deviations from the mean of its first elements give mean and variance of all. Rounding is
// amplified if those elements are far from the rest, so then a second pass starts from the mean that was found. The
// deviations of a row of equal numbers are zero, and so is its variance.
template <bool kGradient, class T>
PRECAST_INLINE Row open_row(const T* x, const T* grad, const Columns<T>& weight, int64_t hidden, float eps) {
  const double count = static_cast<double>(hidden);
  const int64_t first = smaller(hidden, kBlock);
  float assumed = sum(load_block_upto(x, hidden)) / static_cast<float>(first);
  Sums sums;
  for (bool again = false;; again = true) {
    sums = sum_row<kGradient>(x, grad, weight, assumed, hidden);
    if (again || !(square(sums.deviations / count) > sums.squares / count / 2)) break;
    assumed = static_cast<float>(static_cast<double>(assumed) + sums.deviations / count);
  }
  const double shift = sums.deviations / count;
  double variance = sums.squares / count - square(shift);
  if (variance < 0) variance = 0;  // NaN stays NaN
  // Zero times a variance that has overflowed is NaN, like the row; its inverse alone would make zeros of the row.
  const float deviation = static_cast<float>(1.0 / sqrt(variance + static_cast<double>(eps)) + 0.0 * variance);
  return {{static_cast<float>(static_cast<double>(assumed) + shift), deviation}, sums, shift};
}

template <class T, class Span>
PRECAST_INLINE Block finish(Block x, Block mean, Block scale, const Columns<T>& weight, const Columns<T>& bias,
                            int64_t i, Span span) {
  const Block normal = (x - mean) * scale;
  if (bias.absent()) return weight.absent() ? normal : normal * weight.at(i, span);
  const Block added = bias.at(i, span);
  return weight.absent() ? fma(x - mean, scale, added) : fma(normal, weight.at(i, span), added);
}

template <class T>
void forward_rows(const ForwardRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_columns}, bias = {rows.bias, rows.wide_columns};
  const int64_t most = rows_at_once(rows.hidden);
  const T* none = nullptr;
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = smaller(most, end - first);
    const T* x = static_cast<const T*>(rows.x) + first * rows.x_stride;
    T* y = static_cast<T*>(rows.y) + first * rows.y_stride;
    Statistics of[kRowsAtOnce];
    for (int64_t k = 0; k < count; ++k) {
      of[k] = open_row<false>(x + k * rows.x_stride, none, weight, rows.hidden, rows.eps).of;
    }
    for (int64_t k = 0; k < count; ++k) {
      const Block mean = both(of[k].mean), scale = both(of[k].inverse_deviation);
      each_block(0, rows.hidden, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
        const Block here = span.load(x + k * rows.x_stride + i);
        span.store(y + k * rows.y_stride + i, finish(here, mean, scale, weight, bias, i, span));
      });
    }
  }
}

// One row of the backward pass: its pointers, and the numbers that its first two passes found. With d = x - mean and
// h = grad * weight: grad_x = scale * h + slope * d + offset.
template <class T>
struct BackwardRow {
  const T *x, *grad;
  T* grad_x;
  float mean, scale, slope, offset;
};

template <class T>
BackwardRow<T> open_backward(const BackwardRows& rows, int64_t row) {
  BackwardRow<T> result;
  result.x = static_cast<const T*>(rows.x) + row * rows.x_stride;
  result.grad = static_cast<const T*>(rows.grad) + row * rows.grad_stride;
  result.grad_x = static_cast<T*>(rows.grad_x) + row * rows.hidden;
  const Columns<T> weight = {rows.weight, rows.wide_columns};
  const Row found = open_row<true>(result.x, result.grad, weight, rows.hidden, rows.eps);
  result.mean = found.of.mean;
  result.scale = found.of.inverse_deviation;
  const Sums& sums = found.sums;
  const double count = static_cast<double>(rows.hidden), r = static_cast<double>(result.scale);
  const double products = sums.products - found.shift * sums.gradients;  // of the deviations from the mean itself
  result.slope = static_cast<float>(-r * r * r * products / count);
  result.offset = static_cast<float>(-r * sums.gradients / count);
  return result;
}

// A block of columns of each row: writes their grad_x and adds scale * grad * d and grad to the sums.
template <class T, class Span>
PRECAST_INLINE void finish_columns(const BackwardRow<T>* group, int64_t count, const Columns<T>& weight, int64_t i,
                                   Span span, Block (&sums)[2]) {
  const Block factor = weight.absent() ? both(1.0f) : weight.at(i, span);
  constexpr bool kOneLoop = PRECAST_WIDTH == 16;  // two sums at a time are too many for sixteen registers
  Block of_weight = sums[0], of_bias = sums[1];
  for (int64_t k = 0; k < count; ++k) {
    const BackwardRow<T>& row = group[k];
    const Block d = span.load(row.x + i) - both(row.mean), g = span.load(row.grad + i), scaled = g * both(row.scale);
    span.store(row.grad_x + i, fma(scaled, factor, fma(both(row.slope), d, both(row.offset))));
    of_weight = fma(scaled, d, of_weight);
    if (kOneLoop) of_bias = of_bias + g;
  }
  if (!kOneLoop) {
    for (int64_t k = 0; k < count; ++k) of_bias = of_bias + span.load(group[k].grad + i);
  }
  sums[0] = of_weight;
  sums[1] = of_bias;
}

template <class T>
void backward_chunks(const BackwardRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_columns};
  sum_chunks<T, 2>(
      rows, rows.parts, begin, end, [&](int64_t row) { return open_backward<T>(rows, row); },
      [&](const BackwardRow<T>* group, int64_t count, int64_t i, auto span, Block(&sums)[2])
          PRECAST_EVERYWHERE { finish_columns(group, count, weight, i, span, sums); });
}

}  // namespace

void forward(const ForwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { forward_rows<decltype(zero)>(rows, begin, end); });
}

void backward(const BackwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { backward_chunks<decltype(zero)>(rows, begin, end); });
}

void reduce(const double* parts, int64_t chunks, int64_t stride, void* result, int dtype, int64_t begin, int64_t end) {
  reduce_columns(parts, chunks, stride, result, dtype, begin, end);
}

}  // namespace precast::layer_norm::PRECAST_CPU_LEVEL
