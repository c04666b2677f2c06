// Tensors that are written in place: each element has a place of its own, in which no other tensor lies.
#pragma once

#include "rows.h"

namespace precast {

// True if no two elements share a place: each stride exceeds the extent of the smaller ones.
__attribute__((noinline)) inline bool is_free_of_overlap(const Tensor& tensor) {
  constexpr int64_t kMaxDim = 5;
  int64_t sizes[kMaxDim], strides[kMaxDim], count = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    const int64_t size = tensor.sizes()[i], stride = tensor.strides()[i];
    if (size == 0) return true;
    if (size == 1) continue;
    int64_t place = count++;
    for (; place > 0 && strides[place - 1] > stride; --place) {
      sizes[place] = sizes[place - 1];
      strides[place] = strides[place - 1];
    }
    sizes[place] = size;
    strides[place] = stride;
  }
  int64_t reach = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (strides[i] <= reach) return false;
    reach += (sizes[i] - 1) * strides[i];
  }
  return true;
}

// Of an element of anything that a call takes.
inline int64_t bytes_of(const Tensor& tensor) {
  const int32_t code = tensor.dtype_code();
  return code == aoti_torch_dtype_int64() ? 8 : code == aoti_torch_dtype_int32() ? 4 : element_bytes(dtype_of(code));
}

// True if both tensors fill their memory and share some of it. The heads of several tensors, or keys and values, may
// take turns in one buffer: such tensors have gaps and are not compared.
inline bool overlap(const Tensor& a, const Tensor& b) {
  const char *begin[2], *end[2];
  const Tensor* const both[] = {&a, &b};
  for (int i = 0; i < 2; ++i) {
    int64_t count = 1, extent = 1;
    for (int64_t k = 0; k < both[i]->dim(); ++k) {
      count *= both[i]->sizes()[k];
      extent += (both[i]->sizes()[k] - 1) * both[i]->strides()[k];
    }
    if (count == 0 || count != extent) return false;
    begin[i] = static_cast<const char*>(both[i]->data());
    end[i] = begin[i] + extent * bytes_of(*both[i]);
  }
  return begin[0] < end[1] && begin[1] < end[0];
}

// A tensor that is written must not share its memory with another.
inline void check_apart(const char* op, const Named& named, const Named& written) {
  PRECAST_CHECK(&named.tensor == &written.tensor || !overlap(named.tensor, written.tensor),
                "%s: %s overlaps %s in memory, which is written; needed its own", op, named.name, written.name);
}

}  // namespace precast
