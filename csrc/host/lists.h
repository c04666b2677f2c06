// Shared by ops over lists of tensors: memory for their tables, and which tensors form one flat range.
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include <new>

#include "torch.h"

namespace precast {

// An array freed at the end of its scope. Elements are plain data and start uninitialised.
template <class T>
class Array {
 public:
  explicit Array(int64_t size) : data_(static_cast<T*>(malloc((static_cast<size_t>(size) + 1) * sizeof(T)))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { free(data_); }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t index) { return data_[index]; }
  const T& operator[](int64_t index) const { return data_[index]; }

 private:
  T* data_;
};

// True if the sizes are equal, and the strides wherever they matter.
inline bool same_layout(const Tensor& a, const Tensor& b) {
  const int64_t dim = a.dim();
  if (b.dim() != dim) return false;
  const int64_t *a_sizes = a.sizes(), *b_sizes = b.sizes(), *a_strides = a.strides(), *b_strides = b.strides();
  for (int64_t i = 0; i < dim; ++i) {
    if (a_sizes[i] != b_sizes[i] || (a_sizes[i] > 1 && a_strides[i] != b_strides[i])) return false;
  }
  return true;
}

// Tensor::has_memory() for a dense tensor, with fewer calls to torch.
inline bool dense_has_memory(const Tensor& tensor, DType dtype) {
  return (tensor.storage_offset() + tensor.numel()) * element_bytes(dtype) <= tensor.storage_bytes();
}

// True if the elements fill their range without gap or overlap, in any order of dimensions (channels_last).
inline bool is_dense(const Tensor& tensor) {
  const int64_t dim = tensor.dim(), *sizes = tensor.sizes(), *strides = tensor.strides();
  int64_t filled = 1;
  uint64_t taken = 0;
  for (int64_t step = 0; step < dim; ++step) {
    for (int64_t i = 0; i < dim && i < 64; ++i) {
      if (sizes[i] <= 1 || (taken >> i & 1) != 0 || strides[i] != filled) continue;
      filled *= sizes[i];
      taken |= uint64_t{1} << i;
      break;
    }
  }
  return filled == tensor.numel();
}

// The memory of a dense tensor.
struct Range {
  uintptr_t begin, end;
};

inline Range range_of(const void* data, int64_t numel, DType dtype) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + static_cast<uintptr_t>(numel * element_bytes(dtype))};
}

}  // namespace precast
