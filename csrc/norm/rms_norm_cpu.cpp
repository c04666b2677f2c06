// RMSNorm forward and backward, thirty-two elements at a time. Compiled once per CPU level.
//
// Each row is read twice, the second time from the caches. Sums run in float over short blocks and in double over the
// blocks, so the error does not grow with the width of a row. Per-call options (the casting, a residual) are
// well-predicted branches inside the loops rather than template arguments, because the user waits for compilation.
#include "../cpu/column_simd.h"
#include "cpu.h"

namespace precast::rms_norm::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

struct Sums {
  double squares;   // of x
  double products;  // of x, grad and weight
};

PRECAST_INLINE float inverse_root(double squares, int64_t hidden, float eps) {
  return static_cast<float>(1.0 / sqrt(squares / static_cast<double>(hidden) + static_cast<double>(eps)));
}

// The sources of a row's values: x itself, or round(x + residual), which is stored along the way. `out` may be either
// input.
template <class T>
struct Plain {
  const T* x;
  template <class Span>
  PRECAST_METHOD Block at(int64_t i, Span span) const {
    return span.load(x + i);
  }
};

template <class T>
struct Added {
  const T *x, *residual;
  T* out;
  template <class Span>
  PRECAST_METHOD Block at(int64_t i, Span span) const {
    const Block value = round_to(span.load(x + i) + span.load(residual + i), x);
    span.store(out + i, value);
    return value;
  }
};

template <class Row>
PRECAST_INLINE double sum_squares(Row row, int64_t hidden) {
  double total = 0;
  for (int64_t start = 0; start < hidden; start += kSumBlock) {
    Block squares = both(0.0f);
    each_block(start, smaller(start + kSumBlock, hidden), [&](int64_t i, auto span) PRECAST_EVERYWHERE {
      const Block a = row.at(i, span);
      squares = fma(a, a, squares);
    });
    total += static_cast<double>(sum(squares));
  }
  return total;
}

template <class T>
PRECAST_INLINE Block apply(Block x, Block weight, Block inverse_rms, int casting) {
  Block normal = x * inverse_rms;
  if (casting == kCastingLlama) normal = round_to(normal, static_cast<const T*>(nullptr));
  if (casting == kCastingGemma) weight = weight + both(1.0f);
  return normal * weight;
}

// Ordinary stores. Bypassing the caches is faster only for memory that was written before. A large result of torch is
// fresh memory, whose pages the kernel has just brought into the cache by clearing them.
template <class T>
PRECAST_INLINE void scale_row(const T* x, const Columns<T>& weight, T* y, int64_t hidden, float inverse_rms,
                              int casting) {
  const Block scale = both(inverse_rms);
  each_block(0, hidden, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    span.store(y + i, apply<T>(span.load(x + i), weight.at(i, span), scale, casting));
  });
}

template <class T>
void forward_rows(const ForwardRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_columns};
  const bool adds = rows.residual != nullptr;
  const T* x = static_cast<const T*>(adds ? rows.sum : rows.x);  // of the second step
  const int64_t x_stride = adds ? rows.sum_stride : rows.x_stride;
  const int64_t most = rows_at_once(rows.hidden);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = smaller(most, end - first);
    float inverse_rms[kRowsAtOnce];
    for (int64_t k = 0; k < count; ++k) {
      const int64_t row = first + k;
      const T* given = static_cast<const T*>(rows.x) + row * rows.x_stride;
      double squares;
      if (adds) {
        const T* residual = static_cast<const T*>(rows.residual) + row * rows.residual_stride;
        squares =
            sum_squares(Added<T>{given, residual, static_cast<T*>(rows.sum) + row * rows.sum_stride}, rows.hidden);
      } else {
        squares = sum_squares(Plain<T>{given}, rows.hidden);
      }
      inverse_rms[k] = inverse_root(squares, rows.hidden, rows.eps);
    }
    for (int64_t k = 0; k < count; ++k) {
      const int64_t row = first + k;
      T* y = static_cast<T*>(rows.y) + row * rows.y_stride;
      scale_row(x + row * x_stride, weight, y, rows.hidden, inverse_rms[k], rows.casting);
    }
  }
}

template <class T>
PRECAST_INLINE Sums sum_row(const T* x, const T* grad, const Columns<T>& weight, int64_t hidden, bool plus_one) {
  Sums total = {0, 0};
  const Block one = both(plus_one ? 1.0f : 0.0f);
  for (int64_t start = 0; start < hidden; start += kSumBlock) {
    Block squares = both(0.0f), products = squares;
    each_block(start, smaller(start + kSumBlock, hidden), [&](int64_t i, auto span) PRECAST_EVERYWHERE {
      const Block a = span.load(x + i), g = span.load(grad + i) * (weight.at(i, span) + one);
      squares = fma(a, a, squares);
      products = fma(g, a, products);
    });
    total.squares += static_cast<double>(sum(squares));
    total.products += static_cast<double>(sum(products));
  }
  return total;
}

// One row of the backward pass: its pointers, and the two numbers that its first pass found.
template <class T>
struct BackwardRow {
  const T *x, *grad, *grad_sum;
  T* grad_x;
  float scale, minus_slope;
};

template <class T>
BackwardRow<T> open_row(const BackwardRows& rows, int64_t row) {
  BackwardRow<T> result;
  result.x = static_cast<const T*>(rows.x) + row * rows.x_stride;
  result.grad = static_cast<const T*>(rows.grad) + row * rows.grad_stride;
  result.grad_sum = static_cast<const T*>(rows.grad_sum);
  if (result.grad_sum != nullptr) result.grad_sum += row * rows.grad_sum_stride;
  result.grad_x = static_cast<T*>(rows.grad_x) + row * rows.hidden;
  const Columns<T> weight = {rows.weight, rows.wide_columns};
  const Sums sums = sum_row(result.x, result.grad, weight, rows.hidden, rows.casting == kCastingGemma);
  result.scale = inverse_root(sums.squares, rows.hidden, rows.eps);
  const double r = static_cast<double>(result.scale);
  result.minus_slope = static_cast<float>(-r * r * r * sums.products / static_cast<double>(rows.hidden));
  return result;
}

// With r = 1 / rms and g = grad * weight, computes for a block of columns of each row:
// grad_x = r * g - r^3 * mean(g * x) * x (+ grad_sum). Adds grad * r * x to the sum.
template <class T, class Span>
PRECAST_INLINE void finish_columns(const BackwardRow<T>* group, int64_t count, const Columns<T>& weight, bool plus_one,
                                   int64_t i, Span span, Block (&sums)[1]) {
  Block factor = weight.at(i, span), of_weight = sums[0];
  if (plus_one) factor = factor + both(1.0f);
  for (int64_t k = 0; k < count; ++k) {
    const BackwardRow<T>& row = group[k];
    const Block a = span.load(row.x + i), g = span.load(row.grad + i), scale = both(row.scale);
    Block result = fma(both(row.minus_slope), a, g * factor * scale);
    if (row.grad_sum != nullptr) result = result + span.load(row.grad_sum + i);
    span.store(row.grad_x + i, result);
    of_weight = fma(g, a * scale, of_weight);
  }
  sums[0] = of_weight;
}

template <class T>
void backward_chunks(const BackwardRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_columns};
  const bool plus_one = rows.casting == kCastingGemma;
  sum_chunks<T, 1>(
      rows, rows.parts, begin, end, [&](int64_t row) { return open_row<T>(rows, row); },
      [&](const BackwardRow<T>* group, int64_t count, int64_t i, auto span, Block(&sums)[1])
          PRECAST_EVERYWHERE { finish_columns(group, count, weight, plus_one, i, span, sums); });
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

}  // namespace precast::rms_norm::PRECAST_CPU_LEVEL
