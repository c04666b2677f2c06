// Checks of the gated activations' tensors, and the division of their work into launches. No check writes anything.
#pragma once

#include "../common/launch.h"
#include "../common/rows.h"
#include "cpu.h"

namespace precast::activations {

// The ops' `kind` argument.
enum Kind : int64_t { kSiluAndMul = 0, kGeluAndMul = 1, kGeluTanhAndMul = 2, kMulAndSilu = 3 };

// A checked x: `rows` rows of two halves of `columns` elements.
struct Gated {
  int64_t rows;
  int64_t columns;
  DType dtype;
  int32_t device;
  Activation activation;
  bool gate_is_second;

  int64_t element_bytes() const { return precast::element_bytes(dtype); }
  // Offsets of the halves within a row of x, in elements.
  int64_t gate_offset() const { return gate_is_second ? columns : 0; }
  int64_t factor_offset() const { return gate_is_second ? 0 : columns; }
};

inline Gated check_gated(const char* op, const Tensor& x, int64_t kind) {
  Gated gated;
  const int32_t code = x.dtype_code();
  gated.dtype = dtype_of(code);
  gated.device = x.device_index();
  PRECAST_CHECK(gated.dtype != DType::kOther, "%s: x is %s; needed float32, float16 or bfloat16", op, dtype_name(code));
  const int64_t dim = x.dim();
  PRECAST_CHECK(dim >= 1, "%s: x has shape (); needed at least one dimension", op);
  const int64_t* sizes = x.sizes();
  PRECAST_CHECK(sizes[dim - 1] % 2 == 0, "%s: x has shape %s; needed an even last dimension, which holds two halves",
                op, shape_of(x).text);
  PRECAST_CHECK(kind >= kSiluAndMul && kind <= kMulAndSilu, "%s: kind is %lld; needed 0, 1, 2 or 3", op,
                printable(kind));
  gated.columns = sizes[dim - 1] / 2;
  gated.rows = gated.columns > 0 ? 1 : 0;
  for (int64_t i = 0; i + 1 < dim; ++i) gated.rows *= sizes[i];
  gated.activation = kind == kGeluAndMul ? kGelu : kind == kGeluTanhAndMul ? kGeluTanh : kSilu;
  gated.gate_is_second = kind == kMulAndSilu;
  return gated;
}

// Maximum units per launch, so that unit numbers and the threads beyond the last unit stay below 2^31.
constexpr int64_t kLaunchUnits = int64_t{1} << 30;

inline Units make_units(int64_t rows, int64_t columns) {
  return {static_cast<unsigned>(rows * columns), division_by(columns)};
}

// A kernel, as an index into a family's entries. Each DType has one kernel per activation, then the one for any shape.
struct Chosen {
  int entry;
  int64_t row_units;
  int64_t unit_bytes;
  int64_t block_units;
};

// `kernels`: how many a family has per DType. The fifth takes aligned vectors of rows at any address.
inline Chosen choose(const Gated& gated, uint64_t misaligned, int kernels) {
  constexpr int kAny = 3, kShifted = 4;
  const int64_t bytes = gated.element_bytes(), row_bytes = gated.columns * bytes;
  const int first = static_cast<int>(gated.dtype) * kernels;
  if (misaligned == 0) return {first + gated.activation, row_bytes / 16, 16, kThreads};
  if (kernels > kShifted && row_bytes >= 16 && row_bytes < (int64_t{1} << 31)) {
    return {first + kShifted, (row_bytes + 15 + 16 - bytes) / 16, 16, kThreads};
  }
  return {first + kAny, gated.columns, bytes, kThreads * kElements};
}

// Calls body(first row, bytes before its first column, units, shape) for the launches that cover all rows: one, unless
// there are very many units.
template <class Body>
void for_launches(const Gated& gated, const Chosen& chosen, const Body& body) {
  const int64_t columns = chosen.row_units;
  for (int64_t column = 0; column < columns; column += kLaunchUnits) {
    const int64_t width = columns - column < kLaunchUnits ? columns - column : kLaunchUnits;
    const int64_t height = kLaunchUnits / width;
    for (int64_t row = 0; row < gated.rows; row += height) {
      const Units units = make_units(gated.rows - row < height ? gated.rows - row : height, width);
      const uint32_t blocks = static_cast<uint32_t>((units.total + chosen.block_units - 1) / chosen.block_units);
      body(row, column * chosen.unit_bytes, units, LaunchShape{blocks, 1, kThreads, 1, 0});
    }
  }
}

// The number of pieces in a parallel region that is worth another thread. An activation takes a few nanoseconds.
inline int64_t grain_pieces(int64_t columns) { return grain_rows(columns < kPiece ? columns : kPiece); }

}  // namespace precast::activations
