// Checks that both families of this folder share. No check writes anything.
#pragma once

#include "../host/rows.h"
#include "args.h"

namespace precast::moe {

constexpr int64_t kMostPairs = int64_t{1} << 31;

// The bytes of an element: 4 for int32, 8 for int64, 0 for any other dtype.
inline int id_bytes(const Tensor& tensor) {
  if (tensor.dtype_code() == aoti_torch_dtype_int32()) return 4;
  return tensor.dtype_code() == aoti_torch_dtype_int64() ? 8 : 0;
}

// Weights are float32, one per pair.
inline void check_weights(const char* op, const Named& weights, const Named& like) {
  PRECAST_CHECK(weights.tensor.dtype_code() == float32_code(), "%s: %s is %s; needed float32", op, weights.name,
                dtype_name(weights.tensor.dtype_code()));
  check_device(op, weights, like.tensor, like.name);
  check_shape(op, weights, like.tensor, like.name);
}

// `x` is named as in the schema.
inline Norm check_rows_of(const char* op, const Named& x) {
  Norm rows;
  rows.dtype_code = x.tensor.dtype_code();
  rows.dtype = dtype_of(rows.dtype_code);
  rows.device = x.tensor.device_index();
  rows.wide_columns = false;
  PRECAST_CHECK(rows.dtype != DType::kOther, "%s: %s is %s; needed float32, float16 or bfloat16", op, x.name,
                dtype_name(rows.dtype_code));
  const int64_t dim = x.tensor.dim();
  PRECAST_CHECK(dim == 2, "%s: %s has shape %s; needed two dimensions", op, x.name, shape_of(x.tensor).text);
  rows.rows = x.tensor.sizes()[0];
  rows.hidden = x.tensor.sizes()[1];
  return rows;
}

}  // namespace precast::moe
