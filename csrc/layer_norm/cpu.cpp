// LayerNorm forward and backward, sixteen elements at a time. Compiled once per CPU level.
//
// Each row is read three times, after the first time from the caches: for its mean, for the deviations from the mean,
// and for the result. Sums run in float over short blocks and in double over the blocks, so the error does not grow
// with the width of a row. An absent weight or bias is a well-predicted branch inside the loops rather than a template
// argument, because the user waits for compilation.
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

template <class T>
double sum_row(const T* x, int64_t hidden) {
  double total = 0;
  for (int64_t start = 0; start < hidden; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, hidden);
    Floats even = broadcast(0), odd = broadcast(0);
    int64_t i = start;
    for (; i + 2 * kLanes <= stop; i += 2 * kLanes) {
      even = even + load(x + i);
      odd = odd + load(x + i + kLanes);
    }
    for (; i < stop; i += kLanes) even = even + load_upto(x + i, stop - i);
    total += static_cast<double>(sum(even + odd));
  }
  return total;
}

// x - mean for the elements, zero in the lanes beyond the last one.
template <class T>
PRECAST_INLINE Floats deviation(const T* x, Floats mean, int64_t count) {
  if (count >= kLanes) return load(x) - mean;
  float lane[kLanes] = {};
  store(lane, load_part(x, count) - mean);
  for (int64_t i = count; i < kLanes; ++i) lane[i] = 0;
  return load(static_cast<const float*>(lane));
}

template <class T>
Sums sum_deviations(const T* x, float mean, int64_t hidden) {
  Sums total = {0, 0, 0, 0};
  const Floats middle = broadcast(mean);
  for (int64_t start = 0; start < hidden; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, hidden);
    Floats deviations = broadcast(0), even = broadcast(0), odd = broadcast(0);
    int64_t i = start;
    for (; i + 2 * kLanes <= stop; i += 2 * kLanes) {
      const Floats a = load(x + i) - middle, b = load(x + i + kLanes) - middle;
      deviations = deviations + (a + b);
      even = fma(a, a, even);
      odd = fma(b, b, odd);
    }
    for (; i < stop; i += kLanes) {
      const Floats a = deviation(x + i, middle, stop - i);
      deviations = deviations + a;
      even = fma(a, a, even);
    }
    total.deviations += static_cast<double>(sum(deviations));
    total.squares += static_cast<double>(sum(even + odd));
  }
  return total;
}

template <class T>
Sums sum_gradients(const T* x, const T* grad, const Columns<T>& weight, float mean, int64_t hidden) {
  Sums total = {0, 0, 0, 0};
  const Floats middle = broadcast(mean);
  for (int64_t start = 0; start < hidden; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, hidden);
    Floats deviations = broadcast(0), squares = broadcast(0), gradients = broadcast(0), products = broadcast(0);
    for (int64_t i = start; i < stop; i += kLanes) {
      const int64_t rest = stop - i;
      const Floats d = deviation(x + i, middle, rest);
      const Floats g = load_upto(grad + i, rest);
      const Floats w = weight.absent() ? broadcast(1.0f) : weight.upto(i, rest);
      deviations = deviations + d;
      squares = fma(d, d, squares);
      gradients = fma(g, w, gradients);
      products = fma(g * w, d, products);
    }
    total.deviations += static_cast<double>(sum(deviations));
    total.squares += static_cast<double>(sum(squares));
    total.gradients += static_cast<double>(sum(gradients));
    total.products += static_cast<double>(sum(products));
  }
  return total;
}

template <class T>
PRECAST_INLINE float rough_mean(const T* x, int64_t hidden) {
  return static_cast<float>(sum_row(x, hidden) / static_cast<double>(hidden));
}

// The mean was rounded, so the deviations have a mean of their own, which is subtracted here. A row of equal numbers
// then has zero variance, whatever its width.
PRECAST_INLINE Statistics corrected(float mean, const Sums& sums, int64_t hidden, float eps) {
  const double count = static_cast<double>(hidden), shift = sums.deviations / count;
  double variance = sums.squares / count - shift * shift;
  if (variance < 0) variance = 0;  // NaN stays NaN
  return {static_cast<float>(static_cast<double>(mean) + shift),
          static_cast<float>(1.0 / sqrt(variance + static_cast<double>(eps)))};
}

template <class T>
PRECAST_INLINE Floats finish(Floats x, Floats mean, Floats scale, const Columns<T>& weight, const Columns<T>& bias,
                             int64_t i, int64_t rest) {
  Floats normal = (x - mean) * scale;
  if (bias.absent()) return weight.absent() ? normal : normal * weight.upto(i, rest);
  const Floats added = bias.upto(i, rest);
  return weight.absent() ? fma(x - mean, scale, added) : fma(normal, weight.upto(i, rest), added);
}

template <class T>
void forward_rows(const ForwardRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_columns}, bias = {rows.bias, rows.wide_columns};
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(rows.x) + row * rows.x_stride;
    T* y = static_cast<T*>(rows.y) + row * rows.hidden;
    const float rough = rough_mean(x, rows.hidden);
    const Statistics of = corrected(rough, sum_deviations(x, rough, rows.hidden), rows.hidden, rows.eps);
    const Floats mean = broadcast(of.mean), scale = broadcast(of.inverse_deviation);
    for (int64_t i = 0; i < rows.hidden; i += kLanes) {
      const int64_t rest = rows.hidden - i;
      store_upto(y + i, finish(load_upto(x + i, rest), mean, scale, weight, bias, i, rest), rest);
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
BackwardRow<T> open_row(const BackwardRows& rows, int64_t row) {
  BackwardRow<T> result;
  result.x = static_cast<const T*>(rows.x) + row * rows.x_stride;
  result.grad = static_cast<const T*>(rows.grad) + row * rows.grad_stride;
  result.grad_x = static_cast<T*>(rows.grad_x) + row * rows.hidden;
  const float rough = rough_mean(result.x, rows.hidden);
  const Sums sums =
      sum_gradients(result.x, result.grad, Columns<T>{rows.weight, rows.wide_columns}, rough, rows.hidden);
  const Statistics of = corrected(rough, sums, rows.hidden, rows.eps);
  result.mean = of.mean;
  result.scale = of.inverse_deviation;
  const double count = static_cast<double>(rows.hidden), r = static_cast<double>(of.inverse_deviation);
  const double products = sums.products - sums.deviations / count * sums.gradients;  // with the corrected mean
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
      rows, rows.parts, begin, end, [&](int64_t row) { return open_row<T>(rows, row); },
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
