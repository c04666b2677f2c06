// RMSNorm forward and backward, thirty-two elements at a time. Compiled once per CPU level.
//
// Each row is read twice, the second time from the caches. Sums run in float over short blocks and in double over the
// blocks, so the error does not grow with the width of a row. Per-call options (the casting, a residual) are
// well-predicted branches inside the loops rather than template arguments, because the user waits for compilation.
#include "cpu.h"

#include "../common/row_simd.h"

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
  PRECAST_METHOD Block at(int64_t i) const { return load_block(x + i); }
  PRECAST_METHOD Block last(int64_t i, int64_t count) const { return load_block_part(x + i, count); }
};

template <class T>
struct Added {
  const T *x, *residual;
  T* out;
  PRECAST_METHOD Block at(int64_t i) const {
    const Block value = round_to(load_block(x + i) + load_block(residual + i), x);
    store_block(out + i, value);
    return value;
  }
  PRECAST_METHOD Block last(int64_t i, int64_t count) const {
    const Block value = round_to(load_block_part(x + i, count) + load_block_part(residual + i, count), x);
    store_block_part(out + i, value, count);
    return value;
  }
};

template <class Row>
double sum_squares(Row row, int64_t hidden) {
  double total = 0;
  for (int64_t start = 0; start < hidden; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, hidden);
    Block squares = both(0.0f);
    int64_t i = start;
    for (; i + kBlock <= stop; i += kBlock) {
      const Block a = row.at(i);
      squares = fma(a, a, squares);
    }
    if (i < stop) {
      const Block a = row.last(i, stop - i);
      squares = fma(a, a, squares);
    }
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
void scale_row(const T* x, const Columns<T>& weight, T* y, int64_t hidden, float inverse_rms, int casting) {
  const Block scale = both(inverse_rms);
  for (int64_t i = 0; i < hidden; i += kBlock) {
    const int64_t rest = hidden - i;
    const Block normal = apply<T>(load_block_upto(x + i, rest), weight.block_upto(i, rest), scale, casting);
    store_block_upto(y + i, normal, rest);
  }
}

template <class T>
void forward_rows(const ForwardRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_weight};
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(rows.x) + row * rows.x_stride;
    T* y = static_cast<T*>(rows.y) + row * rows.y_stride;
    double squares;
    if (rows.residual != nullptr) {
      const T* residual = static_cast<const T*>(rows.residual) + row * rows.residual_stride;
      T* added = static_cast<T*>(rows.sum) + row * rows.sum_stride;
      squares = sum_squares(Added<T>{x, residual, added}, rows.hidden);
      x = added;
    } else {
      squares = sum_squares(Plain<T>{x}, rows.hidden);
    }
    const float inverse_rms = inverse_root(squares, rows.hidden, rows.eps);
    scale_row(x, weight, y, rows.hidden, inverse_rms, rows.casting);
  }
}

template <class T>
PRECAST_INLINE Floats weighted(Floats grad, Floats weight, bool plus_one) {
  return grad * (plus_one ? weight + broadcast(1.0f) : weight);
}

template <class T>
Sums sum_row(const T* x, const T* grad, const Columns<T>& weight, int64_t hidden, bool plus_one) {
  Sums total = {0, 0};
  const Block one = both(plus_one ? 1.0f : 0.0f);
  for (int64_t start = 0; start < hidden; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, hidden);
    Block squares = both(0.0f), products = squares;
    for (int64_t i = start; i < stop; i += kBlock) {
      const int64_t rest = stop - i;
      const Block a = load_block_upto(x + i, rest);
      squares = fma(a, a, squares);
      const Block g = load_block_upto(grad + i, rest) * (weight.block_upto(i, rest) + one);
      products = fma(g, a, products);
    }
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
  const Columns<T> weight = {rows.weight, rows.wide_weight};
  const Sums sums = sum_row(result.x, result.grad, weight, rows.hidden, rows.casting == kCastingGemma);
  result.scale = inverse_root(sums.squares, rows.hidden, rows.eps);
  const double r = static_cast<double>(result.scale);
  result.minus_slope = static_cast<float>(-r * r * r * sums.products / static_cast<double>(rows.hidden));
  return result;
}

// With r = 1 / rms and g = grad * weight, computes for the columns [begin, begin + count):
// grad_x = r * g - r^3 * mean(g * x) * x (+ grad_sum). Adds grad * r * x to `part`.
template <class T>
void finish_columns(const BackwardRow<T>& row, const Columns<T>& weight, bool plus_one, int64_t begin, int64_t count,
                    float* part) {
  const Floats scale = broadcast(row.scale), minus_slope = broadcast(row.minus_slope);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t at = begin + i, rest = count - i;
    const Floats a = load_upto(row.x + at, rest), g = load_upto(row.grad + at, rest);
    Floats result = weighted<T>(g, weight.upto(at, rest), plus_one) * scale;
    result = fma(minus_slope, a, result);
    if (row.grad_sum != nullptr) result = result + load_upto(row.grad_sum + at, rest);
    store_upto(row.grad_x + at, result, rest);
    store(part + i, fma(g, a * scale, load(part + i)));
  }
}

template <class T>
void backward_chunks(const BackwardRows& rows, int64_t begin, int64_t end) {
  const Columns<T> weight = {rows.weight, rows.wide_weight};
  const bool plus_one = rows.casting == kCastingGemma;
  sum_chunks<T, 1>(
      rows, rows.weight_parts, begin, end, [&](int64_t row) { return open_row<T>(rows, row); },
      [&](const BackwardRow<T>& row, int64_t first, int64_t columns, float (&part)[1][kColumns]) {
        finish_columns(row, weight, plus_one, first, columns, part[0]);
      });
}

}  // namespace

void forward(const ForwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { forward_rows<decltype(zero)>(rows, begin, end); });
}

void backward(const BackwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { backward_chunks<decltype(zero)>(rows, begin, end); });
}

void reduce_weight(const double* weight_parts, int64_t chunks, int64_t hidden, void* grad_weight, int dtype,
                   int64_t begin, int64_t end) {
  reduce_columns(weight_parts, chunks, hidden, grad_weight, dtype, begin, end);
}

}  // namespace precast::rms_norm::PRECAST_CPU_LEVEL
