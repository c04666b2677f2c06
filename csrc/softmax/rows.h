// Checks of the softmax ops' tensors, and masks viewed as rows. No check writes anything.
#pragma once

#include "../host/rows.h"
#include "cpu.h"

namespace precast::softmax {

// A checked x: `rows` rows of `columns` elements. A row is a query of a head of a batch.
struct Rows {
  int64_t rows;
  int64_t columns;
  int64_t queries;
  int64_t heads;
  DType dtype;
  int32_t device;

  int64_t element_bytes() const { return precast::element_bytes(dtype); }
};

enum class Shape { kAny, kQueries, kSquare };

inline Rows check_rows(const char* op, const char* name, const Tensor& x, Shape shape) {
  Rows rows;
  rows.dtype = dtype_of(x.dtype_code());
  rows.device = x.device_index();
  PRECAST_CHECK(rows.dtype != DType::kOther, "%s: %s is %s; needed float32, float16 or bfloat16", op, name,
                dtype_name(x.dtype_code()));
  const int64_t dim = x.dim();
  PRECAST_CHECK(dim >= 1 || shape != Shape::kAny, "%s: %s has shape (); needed at least one dimension", op, name);
  PRECAST_CHECK(dim >= 2 || shape == Shape::kAny, "%s: %s has shape %s; needed at least two dimensions", op, name,
                shape_of(x).text);
  const int64_t* sizes = x.sizes();
  rows.columns = sizes[dim - 1];
  rows.queries = dim >= 2 ? sizes[dim - 2] : 1;
  rows.heads = dim >= 3 ? sizes[dim - 3] : 1;
  PRECAST_CHECK(shape != Shape::kSquare || rows.queries == rows.columns,
                "%s: %s has shape %s; needed the last two dimensions to be equal", op, name, shape_of(x).text);
  rows.rows = rows.columns > 0 ? 1 : 0;
  for (int64_t i = 0; i + 1 < dim; ++i) rows.rows *= sizes[i];
  return rows;
}

inline void check_mask(const char* op, const Tensor& x, const Tensor& mask) {
  const int32_t code = mask.dtype_code();
  PRECAST_CHECK(code == aoti_torch_dtype_bool() || code == aoti_torch_dtype_uint8(),
                "%s: mask is %s; needed bool or uint8", op, dtype_name(code));
  check_device(op, {"mask", mask}, x);
  const int64_t dim = x.dim(), mask_dim = mask.dim();
  PRECAST_CHECK(dim <= 4, "%s: x has shape %s; needed at most four dimensions", op, shape_of(x).text);
  bool fits = mask_dim >= 1 && mask_dim <= dim && mask.sizes()[mask_dim - 1] == x.sizes()[dim - 1];
  for (int64_t i = 1; fits && i < mask_dim; ++i) {
    const int64_t size = mask.sizes()[mask_dim - 1 - i];
    fits = size == 1 || size == x.sizes()[dim - 1 - i];
  }
  PRECAST_CHECK(fits, "%s: mask has shape %s and x has %s; needed x's last dimension, and 1 or x's size in the others",
                op, shape_of(mask).text, shape_of(x).text);
}

// A mask that is read in place, or from a copy if its columns are not contiguous.
class ReadMask {
 public:
  explicit ReadMask(const Tensor& mask) : copy_(nullptr) {
    const Tensor* read = &mask;
    const int64_t dim = mask.dim();
    if (mask.sizes()[dim - 1] > 1 && mask.strides()[dim - 1] != 1) {
      copy_ = contiguous(mask);
      read = &copy_;
    }
    rows_ = {static_cast<const uint8_t*>(read->data()), stride(*read, dim - 4), stride(*read, dim - 3),
             stride(*read, dim - 2)};
  }
  const MaskRows& rows() const { return rows_; }

 private:
  static int64_t stride(const Tensor& mask, int64_t dimension) {
    return dimension >= 0 && mask.sizes()[dimension] > 1 ? mask.strides()[dimension] : 0;
  }

  Tensor copy_;
  MaskRows rows_;
};

}  // namespace precast::softmax
