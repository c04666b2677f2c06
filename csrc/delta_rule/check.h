// Checks of the ops' tensors, and the tensors as the kernels see them. No check writes anything.
#pragma once

#include "../host/apart.h"
#include "cpu.h"

namespace precast::delta_rule {

// Arguments of both ops. `states`: the initial ones, or null, or the pool that is written.
struct Tensors {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor* g;
  const Tensor* beta;
  const Tensor* states;
  const Tensor* starts;
  const Tensor* indices;  // null: a prefill
  const Tensor* accepted;
};

inline bool is_long(const Tensor& tensor) { return tensor.dtype_code() == aoti_torch_dtype_int64(); }

// Checks gates or factors of tokens: float32 or the dtype of q, one for each head, or `each` for one.
inline void check_gates(const char* op, const char* name, const Tensor* gates, const Tensor& q, const Tensor& v,
                        int64_t each) {
  if (gates == nullptr) return;
  const int32_t code = gates->dtype_code();
  PRECAST_CHECK(code == float32_code() || code == q.dtype_code(),
                "%s: %s is %s and q is %s; needed float32 or one dtype", op, name, dtype_name(code),
                dtype_name(q.dtype_code()));
  check_device(op, {name, *gates}, q, "q");
  const int64_t dim = gates->dim(), *sizes = gates->sizes();
  PRECAST_CHECK((dim == 3 || (dim == 4 && sizes[3] == each)) && memcmp(sizes, v.sizes(), 3 * sizeof(int64_t)) == 0,
                "%s: %s has shape %s; needed (batch, length, value_heads)%s", op, name, shape_of(*gates).text,
                each != 0 ? ", or one for each element of a key" : "");
}

inline void check_tokens(const char* op, const Tensors& t) {
  PRECAST_CHECK(dtype_of(t.q.dtype_code()) != DType::kOther, "%s: q is %s; needed float32, float16 or bfloat16", op,
                dtype_name(t.q.dtype_code()));
  check_kind(op, {"k", t.k}, t.q, "q");
  check_kind(op, {"v", t.v}, t.q, "q");
  const int64_t *q = t.q.sizes(), *v = t.v.sizes();
  PRECAST_CHECK(t.q.dim() == 4 && same_shape(t.q, t.k) && t.v.dim() == 4 && v[0] == q[0] && v[1] == q[1] && q[2] > 0 &&
                    v[2] > 0 && v[2] % q[2] == 0,
                "%s: q has shape %s, k %s and v %s; needed (batch, length, key_heads, key_dim) twice, and (batch, "
                "length, value_heads, value_dim) with a multiple of key_heads",
                op, shape_of(t.q).text, shape_of(t.k).text, shape_of(t.v).text);
  PRECAST_CHECK(q[3] >= 1 && q[3] <= kMostKeyDim && v[3] >= 1,
                "%s: heads have %lld elements in keys and %lld in values; needed 1 to %d, and 1 or more", op,
                printable(q[3]), printable(v[3]), kMostKeyDim);
  PRECAST_CHECK(q[0] * q[1] < int64_t{1} << 31 && q[0] * v[2] * ((v[3] + 31) / 32) < int64_t{1} << 31,
                "%s: v has shape %s; needed fewer than 2^31 tokens, and pieces of states", op, shape_of(t.v).text);
  check_gates(op, "g", t.g, t.q, t.v, q[3]);
  check_gates(op, "beta", t.beta, t.q, t.v, 0);
}

// The number of sequences. Checks what says where they are.
inline int64_t check_places(const char* op, const Tensors& t) {
  const int64_t batch = t.q.sizes()[0];
  if (t.starts != nullptr) {
    check_integers(op, {"starts", *t.starts}, t.q, "q");
    PRECAST_CHECK(t.starts->dim() == 1 && t.starts->sizes()[0] >= (t.q.sizes()[1] > 0 ? 2 : 1) && batch == 1,
                  "%s: starts has shape %s and q %s; needed (sequences + 1,), and a batch of one", op,
                  shape_of(*t.starts).text, shape_of(t.q).text);
    return t.starts->sizes()[0] - 1;
  }
  if (t.indices == nullptr) return batch;
  check_integers(op, {"indices", *t.indices}, t.q, "q");
  const int64_t dim = t.indices->dim(), *sizes = t.indices->sizes(), length = t.q.sizes()[1];
  PRECAST_CHECK((dim == 1 || (dim == 2 && sizes[1] == length)) && sizes[0] == batch && length >= 1,
                "%s: indices has shape %s and q %s; needed (batch,) or (batch, length), and a token", op,
                shape_of(*t.indices).text, shape_of(t.q).text);
  if (t.accepted == nullptr) return batch;
  check_integers(op, {"accepted", *t.accepted}, t.q, "q");
  PRECAST_CHECK(dim == 2 && t.accepted->dim() == 1 && t.accepted->sizes()[0] == batch,
                "%s: accepted has shape %s and indices %s; needed (batch,), and (batch, length)", op,
                shape_of(*t.accepted).text, shape_of(*t.indices).text);
  return batch;
}

inline void check_states(const char* op, const char* name, const Tensors& t, int64_t sequences) {
  if (t.states == nullptr) return;
  const DType dtype = dtype_of(t.states->dtype_code());
  PRECAST_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16, "%s: %s is %s; needed float32 or bfloat16", op,
                name, dtype_name(t.states->dtype_code()));
  check_device(op, {name, *t.states}, t.q, "q");
  const int64_t *sizes = t.states->sizes(), *q = t.q.sizes(), *v = t.v.sizes();
  const bool fits = t.states->dim() == 4 && sizes[1] == v[2] && sizes[2] == q[3] && sizes[3] == v[3];
  PRECAST_CHECK(fits && (t.indices != nullptr || sizes[0] == sequences),
                "%s: %s has shape %s; needed (%s, %lld, %lld, %lld)", op, name, shape_of(*t.states).text,
                t.indices != nullptr ? "slots" : "sequences", printable(v[2]), printable(q[3]), printable(v[3]));
  if (t.indices == nullptr) return;
  PRECAST_CHECK(last_is_contiguous(*t.states) && is_free_of_overlap(*t.states),
                "%s: %s is written in place and has shape %s with strides %s; needed a contiguous last dimension, and "
                "elements that do not overlap",
                op, name, shape_of(*t.states).text, ShapeText(t.states->strides(), 4).text);
  const std::pair<const char*, const Tensor*> read[] = {{"q", &t.q},
                                                        {"k", &t.k},
                                                        {"v", &t.v},
                                                        {"g", t.g},
                                                        {"beta", t.beta},
                                                        {"indices", t.indices},
                                                        {"accepted", t.accepted}};
  for (const auto& one : read) {
    if (one.second != nullptr) check_apart(op, {one.first, *one.second}, {name, *t.states});
  }
}

// Heads of tokens at one distance, or a contiguous copy of them.
class ReadHeads {
 public:
  // `width`: of the dimensions, those that make up the elements of a head
  ReadHeads(const Tensor* tensor, int64_t width) : copy_(nullptr) {
    if (tensor == nullptr) return;
    const bool plain = width == 0 || last_is_contiguous(*tensor);
    if (!plain || stride(*tensor) < 0) {
      copy_ = contiguous(*tensor);
      tensor = &copy_;
    }
    heads_.dtype = static_cast<int>(dtype_of(tensor->dtype_code()));
    const int64_t bytes = heads_.dtype == 0 ? 4 : 2;
    heads_ = {static_cast<const char*>(tensor->data()), stride(*tensor) * bytes, tensor->strides()[2] * bytes,
              heads_.dtype};
  }
  const Heads& heads() const { return heads_; }

 private:
  static int64_t stride(const Tensor& tensor) { return merged_stride(tensor, 2, 0); }
  Tensor copy_;
  Heads heads_ = {};
};

inline States states_of(const Tensor& tensor) {
  const int64_t bytes = dtype_of(tensor.dtype_code()) == DType::kFloat32 ? 4 : 2, *strides = tensor.strides();
  return {static_cast<char*>(tensor.mutable_data()), strides[0] * bytes, strides[1] * bytes, strides[2] * bytes};
}

}  // namespace precast::delta_rule
