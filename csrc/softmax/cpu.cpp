// Softmax forward and backward, sixteen elements at a time. Compiled once per CPU level.
//
// A row is converted to float once and kept while its maximum, its exponentials, their sum and the result are computed.
// A row that is too long for that is converted part by part, again for each of the three passes; the numbers are the
// same. Sums run in float over short blocks and in double over the blocks.
#include "cpu.h"

#include "../common/exponential.h"

namespace precast::softmax::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

constexpr int64_t kSumBlock = 1024;  // elements summed in float
constexpr int64_t kKept = 4096;      // elements kept at a time: 16 KiB, whole blocks
constexpr float kInfinity = __builtin_inff();

PRECAST_INLINE Floats masked(Floats a, const uint8_t* mask, float value) {
  const FloatPart other = value - FloatPart{};
#define PRECAST_PART(i) select(is_set(mask + (i) * PRECAST_WIDTH), other, a.part[i])
  return {{PRECAST_PARTS(PRECAST_PART)}};
#undef PRECAST_PART
}

PRECAST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>
struct Row {
  const T* x;
  const uint8_t* mask;
  int64_t open;
  float scale, masked_value;

  PRECAST_METHOD Floats at(int64_t i) const {
    const Floats z = load(x + i) * broadcast(scale);
    return mask != nullptr ? masked(z, mask + i, masked_value) : z;
  }
  // The last few elements of the row. The other lanes are minus infinity.
  Floats last(int64_t i) const {
    float lane[kLanes];
    store(lane, load_part(x + i, open - i) * broadcast(scale));
    for (int64_t k = 0; k < kLanes; ++k) {
      if (i + k >= open) {
        lane[k] = -kInfinity;
      } else if (mask != nullptr && mask[i + k] != 0) {
        lane[k] = masked_value;
      }
    }
    return load(static_cast<const float*>(lane));
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

// Keeps the scaled and masked row, padded with minus infinity. Returns its maximum.
template <class T>
PRECAST_RARE float keep(const Row<T>& row, float* kept) {
  Floats largest = broadcast(-kInfinity);
  int64_t i = 0;
  for (; i + kLanes <= row.open; i += kLanes) {
    const Floats z = row.at(i);
    store(kept + i, z);
    largest = greater(largest, z);
  }
  if (i < row.open) {
    const Floats z = row.last(i);
    store(kept + i, z);
    largest = greater(largest, z);
  }
  return largest_lane(largest);
}

// Replaces the kept values with exponentials and adds them to a sum.
PRECAST_RARE void exponentials(float* kept, int64_t open, float largest, double& total) {
  const Floats base = broadcast(largest);
  for (int64_t start = 0; start < open; start += kSumBlock) {
    const int64_t stop = smaller(start + kSumBlock, open);
    Floats block = broadcast(0);
    for (int64_t i = start; i < stop; i += kLanes) {
      const Floats e = exponential(load(kept + i) - base);
      store(kept + i, e);
      block = block + e;
    }
    total += static_cast<double>(sum(block));
  }
}

template <class T>
PRECAST_RARE void write(const float* kept, int64_t open, float share, T* y) {
  const Floats factor = broadcast(share);
  int64_t i = 0;
  for (; i + kLanes <= open; i += kLanes) store(y + i, load(kept + i) * factor);
  if (i < open) store_part(y + i, load(kept + i) * factor, open - i);
}

// The part of the row from `start` on that can be kept at once.
template <class T>
Row<T> part_of(const Row<T>& row, int64_t start) {
  const uint8_t* mask = row.mask == nullptr ? nullptr : row.mask + start;
  return {row.x + start, mask, smaller(row.open - start, kKept), row.scale, row.masked_value};
}

// Returns false, and writes nothing, if the whole row is masked.
template <class T>
bool forward_row(const Row<T>& row, int64_t columns, T* y) {
  alignas(64) float kept[kKept];
  const bool once = row.open <= kKept;
  float largest = -kInfinity;
  for (int64_t start = 0; start < row.open; start += kKept) {
    const float found = keep(part_of(row, start), kept);
    if (found > largest) largest = found;
  }
  if (row.mask != nullptr && largest == row.masked_value && fully_masked(row.mask, columns)) return false;
  double total = 0, unused = 0;
  for (int64_t start = 0; start < row.open; start += kKept) {
    const Row<T> part = part_of(row, start);
    if (!once) keep(part, kept);
    exponentials(kept, part.open, largest, total);
  }
  const float share = static_cast<float>(1.0 / total);
  for (int64_t start = 0; start < row.open; start += kKept) {
    const Row<T> part = part_of(row, start);
    if (!once) keep(part, kept);
    if (!once) exponentials(kept, part.open, largest, unused);
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
    Floats block = broadcast(0);
    int64_t i = start;
    for (; i + kLanes <= stop; i += kLanes) block = fma(load(grad + i), load(y + i), block);
    if (i < stop) block = fma(load_part(grad + i, stop - i), load_part(y + i, stop - i), block);
    total += static_cast<double>(sum(block));
  }
  return total;
}

template <class T>
void backward_rows(const BackwardRows& rows, int64_t begin, int64_t end) {
  const Floats scale = broadcast(rows.scale);
  for (int64_t number = begin; number < end; ++number) {
    const int64_t open = open_columns(number, rows.queries, rows.diagonal, rows.columns, rows.causal);
    const T* grad = static_cast<const T*>(rows.grad) + number * rows.grad_stride;
    const T* y = static_cast<const T*>(rows.y) + number * rows.y_stride;
    T* grad_x = static_cast<T*>(rows.grad_x) + number * rows.columns;
    const Floats dot = broadcast(static_cast<float>(row_dot(grad, y, open)));
    int64_t i = 0;
    for (; i + kLanes <= open; i += kLanes) store(grad_x + i, scale * (load(y + i) * (load(grad + i) - dot)));
    if (i < open) {
      const int64_t rest = open - i;
      store_part(grad_x + i, scale * (load_part(y + i, rest) * (load_part(grad + i, rest) - dot)), rest);
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
