// Norms with a gate, forward and backward, thirty-two elements at a time. Compiled once per CPU level.
#include "../activations/functions.h"
#include "../cpu/column_simd.h"
#include "cpu.h"

namespace precast::gated_norm::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

// The function of a gate and its derivative.
struct Gate {
  Block value, slope;
};

PRECAST_RARE Gate gate_at(Block g, bool is_sigmoid) {
  const Share a = sigmoid(g.first), b = sigmoid(g.second);
  const Block below = {a.below, b.below}, above = {a.above, b.above};
  if (is_sigmoid) return {below, below * above};
  const Block near = {bounded(g.first, kSharp), bounded(g.second, kSharp)};
  return {g * below, below * fma(near, above, both(1.0f))};
}

// A row, and what to read of it: n is x, times the gate if that comes first.
template <class T>
struct Row {
  const T *x, *gate, *grad;
  T *y, *grad_gate;
  float r, mean;
};

template <class T>
PRECAST_INLINE Row<T> row_at(const GatedRows& rows, int64_t row) {
  Row<T> found = {};
  found.x = static_cast<const T*>(rows.x) + row * rows.x_stride;
  if (rows.gate != nullptr) found.gate = static_cast<const T*>(rows.gate) + row * rows.gate_stride;
  if (rows.grad != nullptr) found.grad = static_cast<const T*>(rows.grad) + row * rows.grad_stride;
  found.y = static_cast<T*>(rows.y) + row * rows.y_stride;
  if (rows.grad_gate != nullptr) found.grad_gate = static_cast<T*>(rows.grad_gate) + row * rows.y_stride;
  return found;
}

template <class T, class Span>
PRECAST_INLINE Block weight_at(const Columns<T>& weight, int64_t i, Span span) {
  return weight.absent() ? both(1.0f) : weight.at(i, span);
}

// One block of a row.
struct Elements {
  Block x, n, h, grad;
  Gate gate;
};

template <class T, class Span>
PRECAST_INLINE Elements elements_at(const GatedRows& rows, const Row<T>& row, Block weight, int64_t i, Span span) {
  Elements one;
  one.x = one.n = span.load(row.x + i);
  one.gate = row.gate != nullptr ? gate_at(span.load(row.gate + i), rows.sigmoid) : Gate{both(1.0f), both(0.0f)};
  if (rows.gate_first) one.n = one.n * one.gate.value;
  one.grad = one.h = both(0.0f);
  if (row.grad == nullptr) return one;
  one.grad = span.load(row.grad + i);
  one.h = one.grad * weight;
  if (!rows.gate_first) one.h = one.h * one.gate.value;
  return one;
}

// Finds r, and the mean of h n r for the gradient.
template <class T>
void sum_row(const GatedRows& rows, Row<T>& row) {
  const Columns<T> weight = {rows.weight, rows.wide_columns};
  double squares = 0, products = 0;
  for (int64_t start = 0; start < rows.hidden; start += kSumBlock) {
    Block square = both(0.0f), product = square;
    each_block(start, smaller(start + kSumBlock, rows.hidden), [&](int64_t i, auto span) PRECAST_EVERYWHERE {
      if (row.grad == nullptr && !rows.gate_first) {
        const Block n = span.load(row.x + i);
        square = fma(n, n, square);
        return;
      }
      const Elements one = elements_at(rows, row, weight_at(weight, i, span), i, span);
      square = fma(one.n, one.n, square);
      product = fma(one.h, one.n, product);
    });
    squares += static_cast<double>(sum(square));
    products += static_cast<double>(sum(product));
  }
  const double scale = static_cast<double>(rows.scale);
  const double r = 1.0 / __builtin_sqrt(squares * scale + static_cast<double>(rows.eps));
  row.r = static_cast<float>(r);
  row.mean = static_cast<float>(products * r * scale);
}

template <class T>
void forward_rows(const GatedRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_columns};
  const T* const like = nullptr;
  const bool last = rows.gate != nullptr && !rows.gate_first;
  for (int64_t index = begin; index < end; ++index) {
    Row<T> row = row_at<T>(rows, index);
    sum_row(rows, row);
    each_block(0, rows.hidden, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
      const Block factor = weight_at(weight, i, span);
      const Elements one = elements_at(rows, row, factor, i, span);
      Block y = one.n * both(row.r);
      if (rows.llama) y = round_to(y, like);
      y = y * factor;
      if (rows.llama && last && !rows.wide_columns) y = round_to(y, like);
      span.store(row.y + i, last ? y * one.gate.value : y);
    });
  }
}

template <class T, class Span>
PRECAST_INLINE void finish(const GatedRows& rows, const Row<T>& row, Block factor, int64_t i, Span span, Block& sum) {
  const Elements one = elements_at(rows, row, factor, i, span);
  const Block normal = one.n * both(row.r), of_n = (one.h - normal * both(row.mean)) * both(row.r);
  if (rows.gate_first) {
    span.store(row.y + i, of_n * one.gate.value);
    span.store(row.grad_gate + i, of_n * one.x * one.gate.slope);
    sum = fma(one.grad, normal, sum);
    return;
  }
  span.store(row.y + i, of_n);
  if (row.gate != nullptr) span.store(row.grad_gate + i, one.grad * factor * normal * one.gate.slope);
  sum = fma(one.grad * one.gate.value, normal, sum);
}

template <class T>
void backward_chunks(const GatedRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_columns};
  sum_chunks<T, 1>(
      rows, rows.parts, begin, end,
      [&](int64_t index) {
        Row<T> row = row_at<T>(rows, index);
        sum_row(rows, row);
        return row;
      },
      [&](const Row<T>* group, int64_t count, int64_t i, auto span, Block(&sums)[1]) PRECAST_EVERYWHERE {
        const Block factor = weight_at(weight, i, span);
        for (int64_t k = 0; k < count; ++k) finish(rows, group[k], factor, i, span, sums[0]);
      });
}

}  // namespace

void forward(const GatedRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { forward_rows<decltype(zero)>(rows, begin, end); });
}

void backward(const GatedRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { backward_chunks<decltype(zero)>(rows, begin, end); });
}

void reduce(const double* parts, int64_t chunks, int64_t stride, void* result, int dtype, int64_t begin, int64_t end) {
  reduce_columns(parts, chunks, stride, result, dtype, begin, end);
}

}  // namespace precast::gated_norm::PRECAST_CPU_LEVEL
