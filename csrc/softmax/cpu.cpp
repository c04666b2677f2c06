// Softmax forward and backward, thirty-two elements at a time. Compiled once per CPU level.
//
// A row is converted to float once and kept while its maximum, its exponentials, their sum and the result are computed.
// A row that is too long for that is read twice, part by part: once for its maximum and its sum, once for the result.
// Sums run in float over short blocks and in double over the blocks.
#include "cpu.h"

#include "../common/exponential.h"
#include "../common/row_simd.h"

namespace precast::softmax::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

constexpr int64_t kKept = 4096;  // elements kept at a time: 16 KiB, whole blocks
constexpr float kInfinity = __builtin_inff();

template <class T>
struct Row {
  const T* x;
  const uint8_t* mask;
  int64_t open;
  float scale, masked_value;

  PRECAST_METHOD Block at(int64_t i) const {
    const Block z = load_block(x + i) * both(scale);
    return mask != nullptr ? masked(z, mask + i, masked_value, x) : z;
  }
  // The last few elements of the row. The other lanes are minus infinity.
  Block last(int64_t i) const {
    const int64_t count = open - i;
    Block z = load_block_part(x + i, count) * both(scale);
    if (mask != nullptr) {
      uint8_t bytes[kBlock] = {};
      copy(bytes, mask + i, count);
      z = masked(z, bytes, masked_value, x);
    }
    return beyond(z, count, -kInfinity, x);
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

// Keeps the scaled and masked row, padded with minus infinity, in the order of its blocks. Returns its maximum.
template <class T>
PRECAST_RARE float keep(const Row<T>& row, float* kept) {
  Block largest = both(-kInfinity);
  int64_t i = 0;
  for (; i + kBlock <= row.open; i += kBlock) {
    const Block z = row.at(i);
    store_block(kept + i, z);
    largest = greater(largest, z);
  }
  if (i < row.open) {
    const Block z = row.last(i);
    store_block(kept + i, z);
    largest = greater(largest, z);
  }
  return largest_lane(largest);
}

// Replaces the kept values with exponentials and returns their sum.
PRECAST_RARE double exponentials(float* kept, int64_t open, float largest) {
  const Block base = both(largest);
  double total = 0;
  for (int64_t start = 0; start < open; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, open);
    Block part = both(0.0f);
    for (int64_t i = start; i < stop; i += kBlock) {
      const Block e = exponential(load_block(kept + i) - base);
      store_block(kept + i, e);
      part = part + e;
    }
    total += static_cast<double>(sum(part));
  }
  return total;
}

template <class T>
PRECAST_RARE void write(const float* kept, int64_t open, float share, T* y) {
  const Block factor = both(share);
  int64_t i = 0;
  for (; i + kBlock <= open; i += kBlock) store_block(y + i, load_block(kept + i) * factor);
  if (i < open) store_block_part(y + i, load_block(kept + i) * factor, open - i);
}

// The part of the row from `start` on that can be kept at once.
template <class T>
Row<T> part_of(const Row<T>& row, int64_t start) {
  const uint8_t* mask = row.mask == nullptr ? nullptr : row.mask + start;
  return {row.x + start, mask, smaller(row.open - start, kKept), row.scale, row.masked_value};
}

// The maximum of a row, and the sum of the exponentials of what lies below it.
struct Total {
  float largest;
  double sum;
};

// Reads a long row once: whenever a part has a new maximum, the sum so far is scaled to it. Before a number above minus
// infinity is found, nothing is subtracted: the difference of two infinities would be NaN.
template <class T>
Total total_of(const Row<T>& row, float* kept) {
  Total all = {-kInfinity, 0};
  for (int64_t start = 0; start < row.open; start += kKept) {
    const Row<T> part = part_of(row, start);
    const float found = keep(part, kept);
    if (found > all.largest) {
      all.sum *= static_cast<double>(sum(exponential(broadcast(all.largest - found)))) / kLanes;
      all.largest = found;
    }
    all.sum += exponentials(kept, part.open, all.largest > -kInfinity ? all.largest : 0);
  }
  return all;
}

// Returns false, and writes nothing, if the whole row is masked.
template <class T>
bool forward_row(const Row<T>& row, int64_t columns, T* y) {
  alignas(64) float kept[kKept];
  const bool once = row.open <= kKept;
  const Total all = once ? Total{keep(row, kept), 0} : total_of(row, kept);
  if (row.mask != nullptr && all.largest == row.masked_value && fully_masked(row.mask, columns)) return false;
  const double total = once ? exponentials(kept, row.open, all.largest) : all.sum;
  const float share = static_cast<float>(1.0 / total);
  for (int64_t start = 0; start < row.open; start += kKept) {
    const Row<T> part = part_of(row, start);
    if (!once) {
      keep(part, kept);
      exponentials(kept, part.open, all.largest);
    }
    write(kept, part.open, share, y + start);
  }
  return true;
}

template <class T>
void forward_rows(const ForwardRows& rows, int64_t begin, int64_t end) {
  for (int64_t number = begin; number < end; ++number) {
    const int64_t open = open_columns(number, rows.queries, rows.diagonal, rows.columns, rows.causal);
    const T* x = static_cast<const T*>(rows.x) + number * rows.x_stride;
    T* y = static_cast<T*>(rows.y) + number * rows.columns;
    const uint8_t* mask = rows.mask.data;
    if (mask != nullptr) {
      const int64_t head = number / rows.queries;
      mask += head / rows.heads * rows.mask.batch + head % rows.heads * rows.mask.head +
              number % rows.queries * rows.mask.query;
    }
    if (forward_row<T>({x, mask, open, rows.scale, rows.masked_value}, rows.columns, y)) {
      fill_row(y, 0.0f, open, rows.columns);
    } else {
      fill_row(y, rows.uniform ? 1.0f / static_cast<float>(rows.columns) : 0.0f, 0, rows.columns);
    }
  }
}

template <class T>
double row_dot(const T* grad, const T* y, int64_t open) {
  double total = 0;
  for (int64_t start = 0; start < open; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, open);
    Block part = both(0.0f);
    int64_t i = start;
    for (; i + kBlock <= stop; i += kBlock) part = fma(load_block(grad + i), load_block(y + i), part);
    if (i < stop) part = fma(load_block_part(grad + i, stop - i), load_block_part(y + i, stop - i), part);
    total += static_cast<double>(sum(part));
  }
  return total;
}

template <class T>
void backward_rows(const BackwardRows& rows, int64_t begin, int64_t end) {
  const Block scale = both(rows.scale);
  for (int64_t number = begin; number < end; ++number) {
    const int64_t open = open_columns(number, rows.queries, rows.diagonal, rows.columns, rows.causal);
    const T* grad = static_cast<const T*>(rows.grad) + number * rows.grad_stride;
    const T* y = static_cast<const T*>(rows.y) + number * rows.y_stride;
    T* grad_x = static_cast<T*>(rows.grad_x) + number * rows.columns;
    const Block dot = both(static_cast<float>(row_dot(grad, y, open)));
    for (int64_t i = 0; i < open; i += kBlock) {
      const int64_t rest = open - i;
      const Block of = load_block_upto(y + i, rest), g = load_block_upto(grad + i, rest);
      store_block_upto(grad_x + i, scale * (of * (g - dot)), rest);
    }
    fill_row(grad_x, 0.0f, open, rows.columns);
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
