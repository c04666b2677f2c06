// Softmax forward and backward, thirty-two elements at a time. Compiled once per CPU level.
//
// A row is converted to float once and kept while its maximum, its exponentials, their sum and the result are computed,
// step by step for several short rows.
// A row that is too long for that is read twice, part by part: once for its maximum and its sum, once for the result.
// Sums run in float over short blocks and in double over the blocks.
#include "cpu.h"

#include "../cpu/kept_row.h"

namespace precast::softmax::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

template <class T>
struct Row {
  const T* x;
  const uint8_t* mask;
  int64_t open;
  float scale, masked_value;

  PRECAST_METHOD Block at(int64_t i, Whole whole) const {
    const Block z = whole.load(x + i) * both(scale);
    return mask != nullptr ? masked(z, mask + i, masked_value, x) : z;
  }
  PRECAST_METHOD Block at(int64_t i, Part part) const {
    Block z = part.load(x + i) * both(scale);
    if (mask != nullptr) {
      uint8_t bytes[kBlock] = {};
      if (part.count < kBlock) copy<kBlock>(bytes, mask + i, part.count);
      z = masked(z, part.count < kBlock ? bytes : mask + i, masked_value, x);
    }
    return part.beyond(z, -kInfinity, x);
  }
};

template <class T>
void fill_row(T* y, float value, int64_t begin, int64_t end) {
  const Floats all = broadcast(value);
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) store(y + i, all);
  if (i < end) store_part(y + i, all, end - i);
}

int64_t open_columns(int64_t row, int64_t queries, int64_t diagonal, int64_t columns, bool causal) {
  if (!causal) return columns;
  const int64_t open = row % queries + 1 + diagonal;
  return open < 0 ? 0 : smaller(open, columns);
}

bool fully_masked(const uint8_t* mask, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) {
    if (mask[i] == 0) return false;
  }
  return true;
}

template <class T>
PRECAST_RARE void write(const float* kept, int64_t open, float share, T* y) {
  const Block factor = both(share);
  each_block(0, open,
             [&](int64_t i, auto span) PRECAST_EVERYWHERE { span.store(y + i, load_block(kept + i) * factor); });
}

template <class T>
Row<T> row_at(const ForwardRows& rows, int64_t number) {
  const uint8_t* mask = rows.mask.data;
  if (mask != nullptr) {
    const int64_t head = number / rows.queries;
    mask += head / rows.heads * rows.mask.batch + head % rows.heads * rows.mask.head +
            number % rows.queries * rows.mask.query;
  }
  const int64_t open = open_columns(number, rows.queries, rows.diagonal, rows.columns, rows.causal);
  return {static_cast<const T*>(rows.x) + number * rows.x_stride, mask, open, rows.scale, rows.masked_value};
}

template <class T>
bool has_no_column(const Row<T>& row, float largest, int64_t columns) {
  return row.mask != nullptr && largest == row.masked_value && fully_masked(row.mask, columns);
}

template <class T>
void write_uniform(const ForwardRows& rows, T* y) {
  fill_row(y, rows.uniform ? 1.0f / static_cast<float>(rows.columns) : 0.0f, 0, rows.columns);
}

// `count` rows from `first` on, which are kept together.
template <class T>
void forward_group(const ForwardRows& rows, int64_t first, int64_t count) {
  alignas(64) float kept[kKept];
  const int64_t slot = (rows.columns + kBlock - 1) / kBlock * kBlock;
  Row<T> row[kRowsAtOnce];
  float largest[kRowsAtOnce], share[kRowsAtOnce];
  for (int64_t i = 0; i < count; ++i) {
    row[i] = row_at<T>(rows, first + i);
    largest[i] = keep(row[i], kept + i * slot);
  }
  for (int64_t i = 0; i < count; ++i) {
    const double total = exponentials(kept + i * slot, padded(row[i].open, row[i].x), largest[i]);
    share[i] = static_cast<float>(1.0 / total);
  }
  for (int64_t i = 0; i < count; ++i) {
    T* y = static_cast<T*>(rows.y) + (first + i) * rows.columns;
    if (has_no_column(row[i], largest[i], rows.columns)) {
      write_uniform(rows, y);
    } else {
      write(kept + i * slot, row[i].open, share[i], y);
      fill_row(y, 0.0f, row[i].open, rows.columns);
    }
  }
}

// The part of the row from `start` on that can be kept at once.
template <class T>
Row<T> part_of(const Row<T>& row, int64_t start) {
  const uint8_t* mask = row.mask == nullptr ? nullptr : row.mask + start;
  return {row.x + start, mask, smaller(row.open - start, kKept), row.scale, row.masked_value};
}

// Reads a long row once.
template <class T>
void total_of(const Row<T>& row, T* y, float* kept, bool stays, Known* all) {
  static_cast<Total&>(*all) = {};
  for (int64_t start = 0; start < row.open; start += kKept) {
    const Row<T> part = part_of(row, start);
    float* place = stays ? place_of(y + start, kept, part.open) : kept;
    add_part(keep(part, place), place, padded(part.open, part.x), all);
    if (stays) all->known[start / kKept] = all->largest;
  }
}

// A row that cannot be kept as a whole. If it is float, its exponentials stay in the result and are scaled there.
// Otherwise the row is read again.
template <class T>
void forward_long_row(const ForwardRows& rows, int64_t number) {
  alignas(64) float kept[kKept];
  const Row<T> row = row_at<T>(rows, number);
  T* y = static_cast<T*>(rows.y) + number * rows.columns;
  const bool stays = sizeof(T) == sizeof(float) && row.open <= kParts * kKept;
  Known all;
  total_of(row, y, kept, stays, &all);
  if (has_no_column(row, all.largest, rows.columns)) return write_uniform(rows, y);
  const float share = static_cast<float>(1.0 / all.sum);
  for (int64_t start = 0; start < row.open; start += kKept) {
    const Row<T> part = part_of(row, start);
    if (stays) {
      const float scale = sum(exponential(broadcast(all.known[start / kKept] - all.largest))) / kLanes;
      write(place_of(y + start, kept, part.open), part.open, scale * share, y + start);
      continue;
    }
    keep(part, kept);
    exponentials(kept, padded(part.open, part.x), all.largest);
    write(kept, part.open, share, y + start);
  }
  fill_row(y, 0.0f, row.open, rows.columns);
}

template <class T>
void forward_rows(const ForwardRows& rows, int64_t begin, int64_t end) {
  if (rows.columns > kKept) {
    for (int64_t number = begin; number < end; ++number) forward_long_row<T>(rows, number);
    return;
  }
  const int64_t slot = (rows.columns + kBlock - 1) / kBlock * kBlock, most = rows_at_once(slot);
  for (int64_t number = begin; number < end; number += most) {
    forward_group<T>(rows, number, smaller(most, end - number));
  }
}

template <class T>
PRECAST_INLINE double row_dot(const T* grad, const T* y, int64_t open) {
  double total = 0;
  for (int64_t start = 0; start < open; start += kSumBlock) {
    Block part = both(0.0f);
    each_block(start, smaller(start + kSumBlock, open), [&](int64_t i, auto span) PRECAST_EVERYWHERE {
      part = fma(span.load(grad + i), span.load(y + i), part);
    });
    total += static_cast<double>(sum(part));
  }
  return total;
}

template <class T>
void backward_rows(const BackwardRows& rows, int64_t begin, int64_t end) {
  const Block scale = both(rows.scale);
  const int64_t most = rows_at_once(2 * rows.columns);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = smaller(most, end - first);
    float dots[kRowsAtOnce];
    const auto grad_of = [&](int64_t number) { return static_cast<const T*>(rows.grad) + number * rows.grad_stride; };
    const auto y_of = [&](int64_t number) { return static_cast<const T*>(rows.y) + number * rows.y_stride; };
    const auto open_of = [&](int64_t number) {
      return open_columns(number, rows.queries, rows.diagonal, rows.columns, rows.causal);
    };
    for (int64_t k = 0; k < count; ++k) {
      const int64_t number = first + k;
      dots[k] = static_cast<float>(row_dot(grad_of(number), y_of(number), open_of(number)));
    }
    for (int64_t k = 0; k < count; ++k) {
      const int64_t number = first + k, open = open_of(number);
      const T *grad = grad_of(number), *y = y_of(number);
      T* grad_x = static_cast<T*>(rows.grad_x) + number * rows.columns;
      const Block offset = both(-rows.scale * dots[k]);
      each_block(0, open, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
        span.store(grad_x + i, span.load(y + i) * fma(span.load(grad + i), scale, offset));
      });
      fill_row(grad_x, 0.0f, open, rows.columns);
    }
  }
}

}  // namespace

void forward(const ForwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { forward_rows<decltype(zero)>(rows, begin, end); });
}

void backward(const BackwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { backward_rows<decltype(zero)>(rows, begin, end); });
}

}  // namespace precast::softmax::PRECAST_CPU_LEVEL
