// Checks of the gated activations' tensors, and the division of their work into launches. No check writes anything.
#pragma once

#include <math.h>

#include "../gpu/entry_points.h"
#include "../gpu/row_launch.h"
#include "cpu.h"

namespace precast::activations {

// The ops' `kind` argument. The last two are of gates alone.
enum Kind : int64_t {
  kSiluAndMul = 0,
  kGeluAndMul = 1,
  kGeluTanhAndMul = 2,
  kMulAndSilu = 3,
  kFatReluAndMul = 4,
  kSwigluOaiAndMul = 5,
  kGeluQuickAlone = 6,
  kGeluNewAlone = 7,
};

// Checked inputs: `rows` rows of `columns` elements of the result.
struct Gated {
  int64_t rows;
  int64_t columns;
  DType dtype;
  int32_t device;
  Activation activation;
  bool gate_is_second;
  bool alternates;  // if both are in one tensor: gates and factors take turns
  float alpha, limit;

  int64_t element_bytes() const { return precast::element_bytes(dtype); }
};

// Where gates and factors are, or their gradients. Strides are in elements.
struct Places {
  char* gate;
  char* factor;  // null: there are none
  int64_t gate_stride, factor_stride;
  int64_t step;  // from one gate to the next
};

// The places in one tensor that has both.
inline Places halves_of(const Gated& gated, const void* data, int64_t stride) {
  char* const first = static_cast<char*>(const_cast<void*>(data));
  char* const second = first + (gated.alternates ? 1 : gated.columns) * gated.element_bytes();
  const bool swap = gated.gate_is_second;
  return {swap ? second : first, swap ? first : second, stride, stride, gated.alternates ? 2 : 1};
}

// The places in two tensors, of which the second may be absent.
inline Places pair_of(const Gated& gated, const ReadRows& x, const ReadRows& up) {
  char *const first = const_cast<char*>(x.data()), *const second = const_cast<char*>(up.data());
  if (gated.gate_is_second) return {second, first, up.stride(), x.stride(), 1};
  return {first, second, x.stride(), up.stride(), 1};
}

inline Gated check_gated(const char* op, const Tensor& x, int64_t kind, double alpha, double limit, int64_t last_kind) {
  Gated gated;
  const int32_t code = x.dtype_code();
  gated.dtype = dtype_of(code);
  gated.device = x.device_index();
  PRECAST_CHECK(gated.dtype != DType::kOther, "%s: x is %s; needed float32, float16 or bfloat16", op, dtype_name(code));
  const int64_t dim = x.dim();
  PRECAST_CHECK(dim >= 1, "%s: x has shape (); needed at least one dimension", op);
  PRECAST_CHECK(kind >= kSiluAndMul && kind <= last_kind, "%s: kind is %lld; needed 0 to %lld", op, printable(kind),
                printable(last_kind));
  PRECAST_CHECK(kind != kSwigluOaiAndMul || limit >= 0, "%s: limit is %g; needed a number that is not negative", op,
                limit);
  constexpr Activation kOf[] = {kSilu, kGelu, kGeluTanh, kSilu, kFatRelu, kSwigluOai, kSwish, kGeluNew};
  gated.activation = kOf[kind];
  gated.gate_is_second = kind == kMulAndSilu;
  gated.alternates = kind == kSwigluOaiAndMul;
  gated.alpha = static_cast<float>(alpha);
  gated.limit = kind == kSwigluOaiAndMul ? static_cast<float>(limit) : INFINITY;
  gated.columns = x.sizes()[dim - 1];
  gated.rows = 1;
  for (int64_t i = 0; i + 1 < dim; ++i) gated.rows *= x.sizes()[i];
  return gated;
}

// Of one tensor with gates and factors.
inline Gated check_halves(const char* op, const Tensor& x, int64_t kind, double alpha, double limit) {
  Gated gated = check_gated(op, x, kind, alpha, limit, kSwigluOaiAndMul);
  PRECAST_CHECK(gated.columns % 2 == 0, "%s: x has shape %s; needed an even last dimension, which holds two halves", op,
                shape_of(x).text);
  gated.columns /= 2;
  if (gated.columns == 0) gated.rows = 0;
  return gated;
}

// Of one tensor, or of two of one shape.
inline Gated check_pair(const char* op, const Tensor& x, const Tensor* up, int64_t kind, double alpha, double limit,
                        const Tensor* grad) {
  Gated gated = check_gated(op, x, kind, alpha, limit, kGeluNewAlone);
  PRECAST_CHECK((up == nullptr) == (kind >= kGeluQuickAlone),
                "%s: kind is %lld and up is %s; needed up for kinds 0 to 5", op, printable(kind),
                up == nullptr ? "None" : "a tensor");
  const Named others[] = {{"up", up == nullptr ? x : *up}, {"grad", grad == nullptr ? x : *grad}};
  bool contiguous = x.is_contiguous();
  for (const Named& other : others) {
    check_kind(op, other, x);
    check_shape(op, other, x);
    contiguous = contiguous && other.tensor.is_contiguous();
  }
  gated.alternates = false;
  if (gated.columns == 0) gated.rows = 0;
  if (contiguous && gated.rows > 0) {  // one row: then all of it but the end can be moved by vectors
    gated.columns *= gated.rows;
    gated.rows = 1;
  }
  return gated;
}

// Maximum units per launch, so that unit numbers and the threads beyond the last unit stay below 2^31.
constexpr int64_t kLaunchUnits = int64_t{1} << 30;

inline Units make_units(int64_t rows, int64_t columns) {
  return {static_cast<unsigned>(rows * columns), division_by(columns)};
}

// The kernels of a family: one for each of the first three activations, one for the others, one for any shape, and one
// that takes aligned vectors of rows at any address.
struct GatedKernels {
  ByDType alone[3];
  ByDType others;
  ByDType any;
  ByDType shifted;
  int64_t shifted_units;  // of a block of it
};

// An entry point, and the units of its work.
struct Chosen {
  int entry;
  Form form;
  int64_t row_units;
  int64_t block_units;
  int64_t element_bytes;
  int tail = 0;                 // elements of the last unit of all, if it is not a whole vector
  uint32_t threads = kThreads;  // of a block

  int64_t unit_bytes() const { return form == kSingle ? element_bytes : 16; }
};

// Activations without factors move so little per thread that a GPU cannot start blocks of 64 threads fast enough, about
// one in a cycle. kManyUnits: of a multiprocessor, from which on the blocks are larger.
constexpr int64_t kManyUnits = 2048;

// `misaligned`: of the tensors, without the length of a row.
inline Chosen choose(const GatedKernels& kernels, const Gated& gated, uint64_t misaligned) {
  const int64_t bytes = gated.element_bytes(), row_bytes = gated.columns * bytes;
  const bool other = gated.activation > kGeluTanh;
  const ByDType& vectors = other ? kernels.others : kernels.alone[gated.activation];
  const int64_t rest = row_bytes & 15;
  if (misaligned == 0 && (rest == 0 || gated.rows == 1)) {
    const int64_t units = (row_bytes + 15) / 16;
    const bool many = gated.activation >= kSwish && gated.rows * units > multiprocessors(gated.device) * kManyUnits;
    const uint32_t threads = many ? kManyThreads : kThreads;
    return {vectors[gated.dtype], kVectors, units, threads, bytes, static_cast<int>(rest / bytes), threads};
  }
  if (!gated.alternates && row_bytes >= 16 && row_bytes < (int64_t{1} << 31)) {
    return {kernels.shifted[gated.dtype], kShifted, (row_bytes + 15 + 16 - bytes) / 16, kernels.shifted_units, bytes};
  }
  if (other) return {kernels.others[gated.dtype], kSingle, gated.columns, kThreads, bytes};
  return {kernels.any[gated.dtype], kSingle, gated.columns, kThreads * kElements, bytes};
}

// The end of the memory of all rows.
inline const char* end_of(const Gated& gated, const char* data, int64_t stride_bytes) {
  return data + (gated.rows - 1) * stride_bytes + gated.columns * gated.element_bytes();
}

// That of gates and factors. If they alternate, the first gate decides.
inline uint64_t misaligned_at(const Gated& gated, const Places& at) {
  const int64_t bytes = gated.element_bytes();
  const auto of = [&](const char* data, int64_t stride) {
    return misalignment(data, gated.rows > 1 ? stride * bytes : 0);
  };
  const uint64_t gates = of(at.gate, at.gate_stride);
  return at.step == 2 ? gates : gates | of(at.factor, at.factor_stride);
}

// Calls body(first row, bytes before its first column, units, tail, shape) for the launches that cover all rows: one,
// unless there are very many units.
template <class Body>
void for_launches(const Gated& gated, const Chosen& chosen, const Body& body) {
  const int64_t columns = chosen.row_units;
  for (int64_t column = 0; column < columns; column += kLaunchUnits) {
    const int64_t width = columns - column < kLaunchUnits ? columns - column : kLaunchUnits;
    const int64_t height = kLaunchUnits / width;
    for (int64_t row = 0; row < gated.rows; row += height) {
      const Units units = make_units(gated.rows - row < height ? gated.rows - row : height, width);
      const uint32_t blocks = static_cast<uint32_t>((units.total + chosen.block_units - 1) / chosen.block_units);
      LaunchShape shape = {blocks, 1, chosen.threads, 1, 0};
      body(row, column * chosen.unit_bytes(), units, column + width == columns ? chosen.tail : 0, shape);
    }
  }
}

// What a piece takes one thread, in picoseconds (parallel_rows).
inline int64_t piece_ps(int64_t columns, int64_t element_ps) {
  return (columns < kPiece ? columns : kPiece) * element_ps;
}

}  // namespace precast::activations
