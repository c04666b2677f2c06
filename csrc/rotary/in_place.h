// Heads that are written where they lie: what can be told of them before anything is written.
#pragma once

#include <initializer_list>

#include "rotate.h"

namespace precast::rotary {

// A dimension of more than one element, by its distance.
struct Dimension {
  int64_t size, stride;
};

// A tensor of heads in memory, in elements; its dimensions beside the last one from the nearest to the farthest.
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

  // What lies within one period of memory: 0 where the dimensions that reach farther are no multiples of it.
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

// Whether two tensors may have an element in common. Parts of one packed projection lie between each other without
// touching: then memory has a period, a distance of one of them, in which each has its own piece.
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

// What is read must not be written: the bytes from its first element to its last one are others.
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
