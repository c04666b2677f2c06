// LayerNorm forward and backward, thirty-two elements at a time. Compiled once per CPU level.
//
// Each row is read twice, the second time from the caches: for its mean and variance, and for the result. Sums run in
// float over short blocks and in double over the blocks, so the error does not grow with the width of a row. An absent
// weight or bias is a well-predicted branch inside the loops rather than a template argument, because the user waits
// for compilation.
#include "cpu.h"

#include "../common/row_simd.h"

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

// x - mean for the last elements of a row, zero for those beyond.
template <class T>
PRECAST_RARE Block last_deviations(const T* x, Block mean, int64_t count) {
  return beyond(load_block_part(x, count) - mean, count, 0, x);
}

// The sums for an assumed mean. Without a gradient, the last two are zero.
template <bool kGradient, class T>
Sums sum_row(const T* x, const T* grad, const Columns<T>& weight, float mean, int64_t hidden) {
  Sums total = {0, 0, 0, 0};
  const Block middle = both(mean);
  for (int64_t start = 0; start < hidden; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, hidden);
    Block deviations = both(0.0f), squares = deviations, gradients = deviations, products = deviations;
    for (int64_t i = start; i < stop; i += kBlock) {
      const int64_t rest = stop - i;
      const Block d = rest >= kBlock ? load_block(x + i) - middle : last_deviations(x + i, middle, rest);
      deviations = deviations + d;
      squares = fma(d, d, squares);
      if (!kGradient) continue;
      const Block g = load_block_upto(grad + i, rest);
      const Block h = weight.absent() ? g : g * weight.block_upto(i, rest);
      gradients = gradients + h;
      products = fma(h, d, products);
    }
    total.deviations += static_cast<double>(sum(deviations));
    total.squares += static_cast<double>(sum(squares));
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
  Sums sums = sum_row<kGradient>(x, grad, weight, assumed, hidden);
  if (square(sums.deviations / count) > sums.squares / count / 2) {
    assumed = static_cast<float>(static_cast<double>(assumed) + sums.deviations / count);
    sums = sum_row<kGradient>(x, grad, weight, assumed, hidden);
  }
  const double shift = sums.deviations / count;
  double variance = sums.squares / count - square(shift);
  if (variance < 0) variance = 0;  // NaN stays NaN
  const float deviation = static_cast<float>(1.0 / sqrt(variance + static_cast<double>(eps)));
  return {{static_cast<float>(static_cast<double>(assumed) + shift), deviation}, sums, shift};
}

template <class T>
PRECAST_INLINE Block finish(Block x, Block mean, Block scale, const Columns<T>& weight, const Columns<T>& bias,
                            int64_t i, int64_t rest) {
  const Block normal = (x - mean) * scale;
  if (bias.absent()) return weight.absent() ? normal : normal * weight.block_upto(i, rest);
  const Block added = bias.block_upto(i, rest);
  return weight.absent() ? fma(x - mean, scale, added) : fma(normal, weight.block_upto(i, rest), added);
}

template <class T>
void forward_rows(const ForwardRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_columns}, bias = {rows.bias, rows.wide_columns};
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(rows.x) + row * rows.x_stride;
    T* y = static_cast<T*>(rows.y) + row * rows.hidden;
    const T* none = nullptr;
    const Statistics of = open_row<false>(x, none, weight, rows.hidden, rows.eps).of;
    const Block mean = both(of.mean), scale = both(of.inverse_deviation);
    for (int64_t i = 0; i < rows.hidden; i += kBlock) {
      const int64_t rest = rows.hidden - i;
      store_block_upto(y + i, finish(load_block_upto(x + i, rest), mean, scale, weight, bias, i, rest), rest);
    }
  }
}

// One row of the backward pass: its pointers, and the numbers that its first two passes found. With n the normalised
// row and h = grad * weight: grad_x = scale * h + slope * n + offset.
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
  result.slope = static_cast<float>(-r * r * products / count);
  result.offset = static_cast<float>(-r * sums.gradients / count);
  return result;
}

// The columns [begin, begin + count): writes their grad_x and adds grad * n and grad to the parts.
template <class T>
void finish_columns(const BackwardRow<T>& row, const Columns<T>& weight, int64_t begin, int64_t count,
                    float* weight_part, float* bias_part) {
  const Floats mean = broadcast(row.mean), scale = broadcast(row.scale);
  const Floats slope = broadcast(row.slope), offset = broadcast(row.offset);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t at = begin + i, rest = count - i;
    const Floats normal = (load_upto(row.x + at, rest) - mean) * scale, g = load_upto(row.grad + at, rest);
    const Floats h = weight.absent() ? g : g * weight.upto(at, rest);
    store_upto(row.grad_x + at, fma(h, scale, fma(slope, normal, offset)), rest);
    store(weight_part + i, fma(g, normal, load(static_cast<const float*>(weight_part + i))));
    store(bias_part + i, g + load(static_cast<const float*>(bias_part + i)));
  }
}

template <class T>
void backward_chunks(const BackwardRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_columns};
  sum_chunks<T, 2>(
      rows, rows.parts, begin, end, [&](int64_t row) { return open_backward<T>(rows, row); },
      [&](const BackwardRow<T>& row, int64_t first, int64_t columns, float (&part)[2][kColumns]) {
        finish_columns(row, weight, first, columns, part[0], part[1]);
      });
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
