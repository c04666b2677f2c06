// Heads that are rotated in place, and the checks made before anything is written.
#pragma once

#include <initializer_list>

#include "rotate.h"

namespace precast::rotary {

// A dimension and its stride.
struct Dimension {
  int64_t size, stride;
};

// A tensor of heads in memory, in elements. Its dimensions, without the last one, are sorted by increasing stride.
struct WrittenHeads {
  WrittenHeads(const char* op, const Named& named, const HeadsShape& shape)
      : data(static_cast<char*>(named.tensor.mutable_data())),
        strides(head_strides(named.tensor)),
        bytes(shape.element_bytes()),
        width(shape.width),
        dimensions{{shape.heads, strides.head}, {shape.tokens, strides.token}, {shape.outer, strides.outer}} {
    for (int last = 2; last > 0; --last) {
      for (int i = 0; i < last; ++i) {
        if (dimensions[i].stride > dimensions[i + 1].stride) std::swap(dimensions[i], dimensions[i + 1]);
      }
    }
    bool apart = strides.plain;
    extent = width;
    for (const Dimension& one : dimensions) {
      if (one.size <= 1) continue;
      apart = apart && one.stride >= extent;
      extent += (one.size - 1) * one.stride;
    }
    PRECAST_CHECK(apart,
                  "%s: %s is written in place and has shape %s with strides %s; needed a contiguous last dimension, "
                  "leading ones that merge, and heads that do not overlap",
                  op, named.name, shape_of(named.tensor).text,
                  ShapeText(named.tensor.strides(), named.tensor.dim()).text);
  }

  // The extent within one period of memory. 0 if the strides of the dimensions that reach farther are no multiples of
  // it.
  int64_t extent_within(int64_t period) const {
    int64_t within = width;
    for (const Dimension& one : dimensions) {
      if (one.size <= 1) continue;
      if (one.stride < period) {
        within += (one.size - 1) * one.stride;
      } else if (one.stride % period != 0) {
        return 0;
      }
    }
    return within <= period ? within : 0;
  }

  char* data;
  HeadStrides strides;
  int64_t bytes;
  int64_t width;
  Dimension dimensions[3];
  int64_t extent;
};

// True if two tensors may share an element. Parts of one packed projection are interleaved without overlap: then a
// stride of one of them is a period of memory, in which each tensor has its own piece.
inline bool overlap(const WrittenHeads& a, const WrittenHeads& b) {
  if (b.data < a.data) return overlap(b, a);
  const int64_t distance = b.data - a.data;
  if (distance >= a.extent * a.bytes) return false;
  if (distance % a.bytes != 0) return true;
  for (const Dimension& one : a.dimensions) {
    if (one.size <= 1) continue;
    const int64_t period = one.stride, within_a = a.extent_within(period), within_b = b.extent_within(period);
    const int64_t offset = distance / a.bytes % period;
    if (within_a > 0 && within_b > 0 && offset >= within_a && offset + within_b <= period) return false;
  }
  return true;
}

// Inputs must not be overwritten: no byte from an input's first element to its last may belong to the heads.
inline void check_apart(const char* op, const WrittenHeads& heads, const Named& named, const Tables& tables) {
  const char *begin = heads.data, *end = heads.data + heads.extent * heads.bytes;
  const auto check = [&](const char* name, const Tensor& tensor, int64_t bytes) {
    int64_t extent = 1;
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      if (tensor.sizes()[i] == 0) return;
      extent += (tensor.sizes()[i] - 1) * tensor.strides()[i];
    }
    const char* from = static_cast<const char*>(tensor.data());
    PRECAST_CHECK(end <= from || from + extent * bytes <= begin,
                  "%s: %s overlaps %s in memory, which is written; needed its own", op, name, named.name);
  };
  const int64_t table_bytes = tables.cos.dtype_code() == float32_code() ? 4 : 2;
  check("cos", tables.cos, table_bytes);
  check("sin", tables.sin, table_bytes);
  if (tables.positions == nullptr) return;
  check("positions", *tables.positions, tables.positions->dtype_code() == aoti_torch_dtype_int64() ? 8 : 4);
}

}  // namespace precast::rotary
