// Shared by row-wise ops on the host: checks of tensors, and tensors viewed as rows. No check writes anything.
#pragma once

#include <stdint.h>

#include "checks.h"
#include "torch.h"

namespace precast {

// A checked x, with `rows` rows of `hidden` elements.
struct Norm {
  int64_t rows;
  int64_t hidden;
  DType dtype;
  int32_t dtype_code;
  int32_t device;
  bool wide_columns;  // weight and bias are float32, and x is narrower

  int64_t element_bytes() const { return precast::element_bytes(dtype); }
  int64_t column_bytes() const { return wide_columns ? 4 : element_bytes(); }
  int32_t columns_code() const { return wide_columns ? float32_code() : dtype_code; }
  DType columns_dtype() const { return wide_columns ? DType::kFloat32 : dtype; }
};

// A tensor that must have x's dtype and device, and its name in error messages.
struct Named {
  const char* name;
  const Tensor& tensor;
};

// `called`: the name of x in error messages, here and below.
inline void check_device(const char* op, const Named& other, const Tensor& x, const char* called = "x") {
  PRECAST_CHECK(other.tensor.device_type() == x.device_type() && other.tensor.device_index() == x.device_index(),
                "%s: %s is on %s and %s on %s; needed one device", op, other.name, device_of(other.tensor).text, called,
                device_of(x).text);
}

inline void check_kind(const char* op, const Named& other, const Tensor& x, const char* called = "x") {
  PRECAST_CHECK(other.tensor.dtype_code() == x.dtype_code(), "%s: %s is %s and %s is %s; needed one dtype", op,
                other.name, dtype_name(other.tensor.dtype_code()), called, dtype_name(x.dtype_code()));
  check_device(op, other, x, called);
}

// Checks a tensor of indices, counts or places.
inline void check_integers(const char* op, const Named& one, const Tensor& x, const char* called = "x") {
  const int32_t code = one.tensor.dtype_code();
  PRECAST_CHECK(code == aoti_torch_dtype_int32() || code == aoti_torch_dtype_int64(),
                "%s: %s is %s; needed int32 or int64", op, one.name, dtype_name(code));
  check_device(op, one, x, called);
}

// Checks dtype and shape of x. Further checks of x alone go between this call and the checks of the other tensors.
inline Norm check_x(const char* op, const Tensor& x) {
  Norm norm;
  norm.dtype_code = x.dtype_code();
  norm.dtype = dtype_of(norm.dtype_code);
  norm.device = x.device_index();
  norm.wide_columns = false;
  PRECAST_CHECK(norm.dtype != DType::kOther, "%s: x is %s; needed float32, float16 or bfloat16", op,
                dtype_name(norm.dtype_code));
  const int64_t dim = x.dim();
  PRECAST_CHECK(dim >= 1, "%s: x has shape (); needed at least one dimension", op);
  const int64_t* sizes = x.sizes();
  norm.hidden = sizes[dim - 1];
  norm.rows = norm.hidden > 0 ? 1 : 0;
  for (int64_t i = 0; i + 1 < dim; ++i) norm.rows *= sizes[i];
  return norm;
}

inline void check_eps(const char* op, double eps) {
  PRECAST_CHECK(eps >= 0, "%s: eps is %g; needed a number that is not negative", op, eps);
}

// Checks the dtype and device of the first weight or bias, which decides that of others.
inline void check_columns_kind(const char* op, const Named& vector, const Tensor& x, Norm* norm) {
  norm->wide_columns = norm->dtype != DType::kFloat32 && vector.tensor.dtype_code() == float32_code();
  if (norm->wide_columns) return check_device(op, vector, x);
  check_kind(op, vector, x);
}

inline void check_columns(const char* op, const Named& vector, const Norm& norm) {
  PRECAST_CHECK(vector.tensor.dim() == 1 && vector.tensor.sizes()[0] == norm.hidden,
                "%s: %s has shape %s; needed (%lld,), the last dimension of x", op, vector.name,
                shape_of(vector.tensor).text, printable(norm.hidden));
}

inline void check_shape(const char* op, const Named& other, const Tensor& x, const char* called = "x") {
  PRECAST_CHECK(same_shape(other.tensor, x), "%s: %s has shape %s; needed %s, as %s", op, other.name,
                shape_of(other.tensor).text, shape_of(x).text, called);
}

// The common stride, in elements, of the first `count` dimensions merged into one, or -1 if they do not merge. Returns
// `alone` if they hold a single element.
inline int64_t merged_stride(const Tensor& tensor, int64_t count, int64_t alone) {
  const int64_t *sizes = tensor.sizes(), *strides = tensor.strides();
  int64_t stride = -1, expected = 0;
  for (int64_t i = count - 1; i >= 0; --i) {
    if (sizes[i] == 1) continue;
    if (stride < 0) {
      stride = strides[i];
    } else if (strides[i] != expected) {
      return -1;
    }
    expected = strides[i] * sizes[i];
  }
  return stride < 0 ? alone : stride;
}

inline bool last_is_contiguous(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.sizes()[last] <= 1 || tensor.strides()[last] == 1;
}

// The distance between rows in elements. Returns -1 if the last dimension is not contiguous or the leading dimensions
// do not merge into one. A single row has the distance `hidden`.
inline int64_t row_stride(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return last_is_contiguous(tensor) ? merged_stride(tensor, last, tensor.sizes()[last]) : -1;
}

// A tensor to read as rows. If its layout does not allow that, this object owns a contiguous copy. Null stands for an
// absent tensor.
class ReadRows {
 public:
  explicit ReadRows(const Tensor* tensor) : copy_(nullptr) {
    if (tensor == nullptr) return;
    stride_ = row_stride(*tensor);
    if (__builtin_expect(stride_ < 0, 0)) {
      copy_ = contiguous(*tensor);
      tensor = &copy_;
      stride_ = row_stride(copy_);
    }
    data_ = static_cast<const char*>(tensor->data());
  }
  explicit ReadRows(const Tensor& tensor) : ReadRows(&tensor) {}
  const char* data() const { return data_; }
  int64_t stride() const { return stride_; }  // in elements

 private:
  Tensor copy_;
  const char* data_ = nullptr;
  int64_t stride_ = 0;
};

// A tensor that is written in place.
struct WrittenRows {
  char* data;
  int64_t stride;  // in elements
};

inline WrittenRows written_rows(const char* op, const Named& named, int64_t rows, int64_t columns) {
  const Tensor& tensor = named.tensor;
  const int64_t stride = row_stride(tensor);
  PRECAST_CHECK(
      stride >= 0 && (rows == 1 || stride >= columns),
      "%s: %s is written in place and has shape %s with strides %s; needed a contiguous last dimension, and rows at "
      "one distance that do not overlap",
      op, named.name, shape_of(tensor).text, ShapeText(tensor.strides(), tensor.dim()).text);
  return {static_cast<char*>(tensor.mutable_data()), stride};
}

// The smallest share of a parallel region that is worth another thread: about 10 us of work.
inline int64_t grain_rows(int64_t hidden) {
  constexpr int64_t kElements = int64_t{1} << 14;
  return hidden <= 0 ? kElements : hidden < kElements ? kElements / hidden : 1;
}

// Calls body(begin, end) for parts of [0, rows), in parallel if that is faster. A region of torch's pool always wakes
// all threads, so it costs the same for two as for sixteen. It is entered for work that takes longer than that, and
// then each thread gets a share. `row_ps`: what a row takes one thread with AVX-512, in picoseconds.
constexpr int64_t kRegionPs = 5'000'000, kSharePs = 500'000;

template <class Body>
void parallel_rows(int64_t rows, int64_t row_ps, const Body& body) {
  if (rows <= 1 || rows * row_ps <= kRegionPs) return body(0, rows);
  parallel_for(0, rows, row_ps < kSharePs ? kSharePs / row_ps : 1, body);
}

inline uint64_t misalignment(const void* pointer, int64_t stride_bytes) {
  return (reinterpret_cast<uint64_t>(pointer) | static_cast<uint64_t>(stride_bytes)) & 15;
}

inline uint32_t warps_for(int64_t threads) { return static_cast<uint32_t>((threads + 31) / 32 * 32); }

// The number of lanes, a power of two, that hold a row of `vectors` vectors with `each` per lane.
inline uint32_t lanes_for(int64_t vectors, int64_t each) {
  uint32_t lanes = 1;
  while (lanes * each < vectors) lanes *= 2;
  return lanes;
}

}  // namespace precast
