// Checks for every family that rotates: heads, tables of cosines and sines, positions. No check writes anything.
#pragma once

#include "../host/rows.h"
#include "angles.h"

namespace precast::rotary {

// A checked tensor of heads: (..., tokens, heads, width). The leading dimensions count as one.
struct HeadsShape {
  int64_t outer;
  int64_t tokens;
  int64_t heads;
  int64_t width;
  DType dtype;
  int32_t device;

  int64_t element_bytes() const { return dtype == DType::kFloat32 ? 4 : 2; }
};

inline HeadsShape check_heads(const char* op, const Named& query) {
  const Tensor& x = query.tensor;
  HeadsShape shape;
  shape.dtype = dtype_of(x.dtype_code());
  shape.device = x.device_index();
  PRECAST_CHECK(shape.dtype != DType::kOther, "%s: %s is %s; needed float32, float16 or bfloat16", op, query.name,
                dtype_name(x.dtype_code()));
  const int64_t dim = x.dim();
  PRECAST_CHECK(dim >= 3, "%s: %s has shape %s; needed (..., tokens, heads, head_dim)", op, query.name,
                shape_of(x).text);
  const int64_t* sizes = x.sizes();
  shape.tokens = sizes[dim - 3];
  shape.heads = sizes[dim - 2];
  shape.width = sizes[dim - 1];
  shape.outer = 1;
  for (int64_t i = 0; i + 3 < dim; ++i) shape.outer *= sizes[i];
  PRECAST_CHECK(shape.width < int64_t{1} << 28, "%s: %s has shape %s; needed heads of fewer than 2^28 elements", op,
                query.name, shape_of(x).text);
  return shape;
}

// Checks more heads for the same tokens. Their number may differ.
inline HeadsShape check_more_heads(const char* op, const Named& key, const Named& query) {
  check_kind(op, key, query.tensor, query.name);
  const int64_t dim = query.tensor.dim();
  bool fits = key.tensor.dim() == dim;
  for (int64_t i = 0; fits && i < dim; ++i) {
    fits = i == dim - 2 || key.tensor.sizes()[i] == query.tensor.sizes()[i];
  }
  PRECAST_CHECK(fits, "%s: %s has shape %s and %s has %s; needed the same but for the number of heads", op, key.name,
                shape_of(key.tensor).text, query.name, shape_of(query.tensor).text);
  return check_heads(op, key);
}

// The tables of a call with `query`, and the tokens' positions. Without positions, the tables have a row for each
// token.
struct Tables {
  const Tensor& cos;
  const Tensor& sin;
  const Tensor* positions;
};

// Whether tables have a column for each element of a head, if a call may have such tables.
inline bool are_whole(const Tables& tables, const HeadsShape& shape, int flags) {
  return (flags & kWholeTable) != 0 && (flags & kInterleaved) == 0 && shape.width % 2 == 0 && shape.width > 0 &&
         tables.cos.sizes()[1] == shape.width;
}

inline const Tables& check_tables(const char* op, const Tables& tables, const HeadsShape& shape, const Named& query,
                                  int flags = 0) {
  const Tensor& cos = tables.cos;
  const int32_t code = cos.dtype_code();
  PRECAST_CHECK(code == float32_code() || code == query.tensor.dtype_code(),
                "%s: cos is %s and %s is %s; needed float32, or that dtype", op, dtype_name(code), query.name,
                dtype_name(query.tensor.dtype_code()));
  check_device(op, {"cos", cos}, query.tensor, query.name);
  check_kind(op, {"sin", tables.sin}, cos, "cos");
  PRECAST_CHECK(cos.dim() == 2, "%s: cos has shape %s; needed (tokens or positions, rotary_dim / 2)", op,
                shape_of(cos).text);
  check_shape(op, {"sin", tables.sin}, cos, "cos");
  PRECAST_CHECK(cos.sizes()[1] <= shape.width / 2 || are_whole(tables, shape, flags),
                "%s: cos has shape %s and %s has %s; needed at most %lld columns, "
                "half of a head%s",
                op, shape_of(cos).text, query.name, shape_of(query.tensor).text, printable(shape.width / 2),
                (flags & kWholeTable) != 0 ? ", or head_dim columns (not if interleaved)" : "");
  if (tables.positions == nullptr) {
    PRECAST_CHECK(cos.sizes()[0] == shape.tokens,
                  "%s: cos has shape %s and %s has %s; needed one row for each of %lld tokens, or positions", op,
                  shape_of(cos).text, query.name, shape_of(query.tensor).text, printable(shape.tokens));
    return tables;
  }
  const Tensor& positions = *tables.positions;
  check_integers(op, {"positions", positions}, query.tensor, query.name);
  PRECAST_CHECK(positions.dim() == 1 && positions.sizes()[0] == shape.tokens,
                "%s: positions has shape %s and %s has %s; needed (%lld,), one for each token", op,
                shape_of(positions).text, query.name, shape_of(query.tensor).text, printable(shape.tokens));
  PRECAST_CHECK(cos.sizes()[0] > 0 || shape.tokens == 0, "%s: cos has shape %s; needed a row for each position", op,
                shape_of(cos).text);
  return tables;
}

// Checked tables that are read in place. A table whose columns are not contiguous is copied; this object owns the
// copies. `flags`: those that do not depend on the tables; with kWholeTable, tables may be whole.
class ReadAngles {
 public:
  ReadAngles(const Tables& tables, const HeadsShape& shape, int flags)
      : cos_(nullptr), sin_(nullptr), positions_(nullptr) {
    const Tensor& cos = in_rows(tables.cos, cos_);
    const Tensor& sin = in_rows(tables.sin, sin_);
    const bool wide = cos.dtype_code() == float32_code();
    const int64_t bytes = wide ? 4 : 2;
    angles_.cos = static_cast<const char*>(cos.data());
    angles_.sin = static_cast<const char*>(sin.data());
    angles_.rows = cos.sizes()[0];
    angles_.cos_stride = angles_.rows > 1 ? cos.strides()[0] * bytes : 0;
    angles_.sin_stride = angles_.rows > 1 ? sin.strides()[0] * bytes : 0;
    const bool whole = are_whole(tables, shape, flags);
    angles_.half = static_cast<int>(whole ? cos.sizes()[1] / 2 : cos.sizes()[1]);
    angles_.positions = nullptr;
    angles_.flags = (whole ? flags : flags & ~kWholeTable) | (wide ? kWideTable : 0);
    if (tables.positions == nullptr) return;
    const Tensor& positions = in_rows(*tables.positions, positions_);
    angles_.positions = static_cast<const char*>(positions.data());
    if (positions.dtype_code() == aoti_torch_dtype_int64()) angles_.flags |= kLongPositions;
  }
  const Angles& angles() const { return angles_; }

 private:
  static const Tensor& in_rows(const Tensor& tensor, Tensor& copy) {
    if (__builtin_expect(last_is_contiguous(tensor), 1)) return tensor;
    copy = contiguous(tensor);
    return copy;
  }

  Tensor cos_, sin_, positions_;
  Angles angles_;
};

// The position of a token, even one outside of the tables.
inline int64_t position_of(const Angles& angles, int64_t token) {
  if (angles.positions == nullptr) return token;
  if ((angles.flags & kLongPositions) != 0) return reinterpret_cast<const int64_t*>(angles.positions)[token];
  return reinterpret_cast<const int32_t*>(angles.positions)[token];
}

// For the CPU only. Positions on a GPU are not read here: its kernels write NaN for positions outside of the tables.
inline void check_positions(const char* op, const Angles& angles, int64_t tokens) {
  if (angles.positions == nullptr) return;
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t row = position_of(angles, i);
    PRECAST_CHECK(row >= 0 && row < angles.rows, "%s: positions[%lld] is %lld and cos has %lld rows; needed 0 to %lld",
                  op, printable(i), printable(row), printable(angles.rows), printable(angles.rows - 1));
  }
}

// Strides in elements between the merged leading dimensions, the tokens, and the heads; 0 in a dimension of one.
struct HeadStrides {
  int64_t outer = 0, token = 0, head = 0;
  bool plain = false;  // whether these three strides describe the tensor's layout
};

inline HeadStrides head_strides(const Tensor& tensor) {
  const int64_t dim = tensor.dim();
  const int64_t *sizes = tensor.sizes(), *strides = tensor.strides();
  HeadStrides found;
  found.outer = merged_stride(tensor, dim - 3, 0);
  found.token = sizes[dim - 3] > 1 ? strides[dim - 3] : 0;
  found.head = sizes[dim - 2] > 1 ? strides[dim - 2] : 0;
  found.plain = last_is_contiguous(tensor) && found.outer >= 0;
  return found;
}

// Heads to read in place, or from a contiguous copy that this object owns.
class ReadHeads {
 public:
  explicit ReadHeads(const Tensor& tensor) : copy_(nullptr), strides_(head_strides(tensor)) {
    const Tensor* read = &tensor;
    if (__builtin_expect(!strides_.plain, 0)) {
      copy_ = contiguous(tensor);
      read = &copy_;
      strides_ = head_strides(copy_);
    }
    data_ = static_cast<const char*>(read->data());
  }
  const char* data() const { return data_; }
  const HeadStrides& strides() const { return strides_; }

 private:
  Tensor copy_;
  HeadStrides strides_;
  const char* data_;
};

}  // namespace precast::rotary
