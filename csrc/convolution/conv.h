// Checks of the ops' tensors, and tensors as the kernels see them. No check writes anything.
#pragma once

#include <vector>

#include "../gpu/entry_points.h"
#include "../host/rows.h"
#include "cpu.h"

namespace precast::causal_conv1d {

// The tensors that every call has, in the order of the schemas.
struct Tensors {
  const Tensor& x;
  const Tensor& weight;
  const Tensor* bias;
};

// A checked call. `columns`: its weights and biases as those of a norm.
struct Call {
  int64_t rows, channels, tokens, width;
  Norm columns;

  int64_t bytes() const { return columns.element_bytes(); }
  int64_t parameters(bool bias) const { return channels * (width + (bias ? 1 : 0)); }
};

// Where the sequences are, and the states before them.
struct Cuts {
  const Tensor* initial;
  const Tensor* index;
  const Tensor* starts;
  int64_t sequences(const Call& call) const { return starts != nullptr ? starts->sizes()[0] - 1 : call.rows; }
};

// `flat`: x may have two dimensions, of sequences with one token each.
inline Call check_call(const char* op, const Tensors& t, bool flat) {
  Call call = {};
  call.columns = check_x(op, t.x);
  const int64_t dim = t.x.dim(), *sizes = t.x.sizes();
  PRECAST_CHECK(dim == 3 || (flat && dim == 2), "%s: x has shape %s; needed (batch, channels, tokens)%s", op,
                shape_of(t.x).text, flat ? " or (batch, channels)" : "");
  call.rows = sizes[0];
  call.channels = sizes[1];
  call.tokens = dim == 3 ? sizes[2] : 1;
  check_columns_kind(op, {"weight", t.weight}, t.x, &call.columns);
  const int64_t* weight = t.weight.sizes();
  PRECAST_CHECK(t.weight.dim() == 2 && weight[0] == call.channels && weight[1] >= 2 && weight[1] <= kMostWidth,
                "%s: weight has shape %s; needed (%lld, 2 to 8), of each channel of x", op, shape_of(t.weight).text,
                printable(call.channels));
  call.width = weight[1];
  if (t.bias != nullptr) {
    check_kind(op, {"bias", *t.bias}, t.weight, "weight");
    PRECAST_CHECK(t.bias->dim() == 1 && t.bias->sizes()[0] == call.channels,
                  "%s: bias has shape %s; needed (%lld,), the channels of x", op, shape_of(*t.bias).text,
                  printable(call.channels));
  }
  return call;
}

// A state by sequence.
inline void check_state(const char* op, const Call& call, const Named& state, int64_t sequences, const Tensor& x) {
  check_kind(op, state, x);
  const int64_t* sizes = state.tensor.sizes();
  PRECAST_CHECK(
      state.tensor.dim() == 3 && sizes[0] == sequences && sizes[1] == call.channels && sizes[2] == call.width - 1,
      "%s: %s has shape %s; needed (%lld, %lld, %lld)", op, state.name, shape_of(state.tensor).text,
      printable(sequences), printable(call.channels), printable(call.width - 1));
}

inline void check_cuts(const char* op, const Call& call, const Tensor& x, const Cuts& cuts) {
  PRECAST_CHECK(cuts.index == nullptr || cuts.starts == nullptr,
                "%s: there are sequence_index and starts; needed one of them", op);
  if (cuts.index != nullptr) {
    check_integers(op, {"sequence_index", *cuts.index}, x);
    const int64_t* sizes = cuts.index->sizes();
    PRECAST_CHECK(cuts.index->dim() == 2 && sizes[0] == call.rows && sizes[1] == call.tokens,
                  "%s: sequence_index has shape %s; needed (%lld, %lld)", op, shape_of(*cuts.index).text,
                  printable(call.rows), printable(call.tokens));
  }
  if (cuts.starts != nullptr) {
    check_integers(op, {"starts", *cuts.starts}, x);
    PRECAST_CHECK(cuts.starts->dim() == 1 && cuts.starts->sizes()[0] >= 1 && call.rows == 1,
                  "%s: starts has shape %s and x has shape %s; needed (sequences + 1,) and a batch of one", op,
                  shape_of(*cuts.starts).text, shape_of(x).text);
  }
  if (cuts.initial != nullptr) check_state(op, call, {"initial_state", *cuts.initial}, cuts.sequences(call), x);
}

// ---- tensors as the kernels see them ----

inline Lines lines_of(const Tensor* tensor, int64_t bytes) {
  if (tensor == nullptr) return {};
  const int64_t* strides = tensor->strides();
  return {static_cast<char*>(const_cast<void*>(tensor->data())), strides[0] * bytes, strides[1] * bytes,
          tensor->dim() == 3 ? strides[2] * bytes : 0};
}

inline Integers integers_of(const Tensor* tensor) {
  if (tensor == nullptr) return {};
  const int64_t dim = tensor->dim(), *strides = tensor->strides();
  const bool is_long = tensor->dtype_code() == aoti_torch_dtype_int64();
  return {static_cast<const char*>(tensor->data()), dim == 2 ? strides[0] : 0, strides[dim - 1], is_long,
          static_cast<int>(tensor->sizes()[dim - 1])};
}

// Whether neighbouring channels are neighbours in memory; else tokens should be.
inline bool has_channels_last(const Tensor& x) { return x.dim() == 2 || x.strides()[1] == 1; }

inline Tensor empty_channels_last(const Tensor& x) {
  const auto one_or_more = [](int64_t size) { return size > 0 ? size : 1; };
  const int64_t *sizes = x.sizes(), channels = one_or_more(sizes[1]);
  const int64_t strides[] = {one_or_more(sizes[2]) * channels, 1, channels};
  return empty_strided(3, sizes, strides, x.dtype_code(), x.device_type(), x.device_index());
}

// An uninitialised result with the shape of x, in its order.
inline Tensor empty_in_order(const Tensor& x) {
  return x.dim() == 3 && has_channels_last(x) ? empty_channels_last(x) : empty_contiguous_like(x);
}

inline Tensor empty_states(const Call& call, int64_t sequences, const Tensor& x) {
  const int64_t sizes[] = {sequences, call.channels, call.width - 1};
  return empty(sizes, 3, x.dtype_code(), x);
}

inline Tensor nothing_like(const Tensor& x) {
  const int64_t none = 0;
  return empty(&none, 1, x.dtype_code(), x);
}

// Weight and bias without gaps.
struct Parameters {
  explicit Parameters(const Tensors& t)
      : weight_(contiguous(t.weight)), bias_(t.bias != nullptr ? contiguous(*t.bias) : Tensor(nullptr)) {
    weight = static_cast<const char*>(weight_.data());
    bias = t.bias != nullptr ? static_cast<const char*>(bias_.data()) : nullptr;
  }
  const char *weight, *bias;

 private:
  Tensor weight_, bias_;
};

inline Walk walk_of(const Call& call, const Tensors& t, const Parameters& parameters, const Cuts& cuts, bool silu) {
  Walk walk = {};
  walk.x = lines_of(&t.x, call.bytes());
  walk.initial = lines_of(cuts.initial, call.bytes());
  walk.weight = parameters.weight;
  walk.bias = parameters.bias;
  walk.cut = cuts.starts != nullptr ? kStarts : cuts.index != nullptr ? kIndex : kWhole;
  walk.cuts = integers_of(cuts.starts != nullptr ? cuts.starts : cuts.index);
  if (cuts.starts != nullptr) --walk.cuts.count;
  walk.length = call.tokens;
  walk.channels = static_cast<unsigned>(call.channels);
  walk.width = static_cast<int>(call.width);
  walk.wide = call.columns.wide_columns;
  walk.silu = silu;
  walk.along = !has_channels_last(t.x);
  walk.rows = static_cast<int>(call.rows);
  return walk;
}

// What is not a multiple of `unit` bytes, of lines whose channels are taken several at a time.
inline uint64_t misaligned(const Lines& lines, int64_t bytes, uint64_t unit) {
  if (lines.channel != bytes) return 1;
  return (reinterpret_cast<uint64_t>(lines.data) | static_cast<uint64_t>(lines.batch | lines.token)) & (unit - 1);
}

// The same with tokens as the elements that lie together.
inline Lines by_token(const Lines& lines) { return {lines.data, lines.batch, lines.token, lines.channel}; }

// Divides the work: `each` channels per thread, and chunks of at least `chunk` tokens.
inline void divide(Walk& walk, int64_t each, int64_t chunk) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const int64_t units = (walk.channels + each - 1) / each;
  const auto chunks = [&] { return walk.length > 0 ? (walk.length + chunk - 1) / chunk : 1; };
  while (units * walk.rows * chunks() >= kMost) chunk *= 2;
  walk.chunk = static_cast<int>(chunk);
  walk.chunks = division_by(chunks());
  walk.fast = walk.along ? walk.chunks : division_by(units);
  walk.total = static_cast<unsigned>(units * walk.rows * chunks());
}

inline LaunchShape shape_of_units(unsigned total) { return {(total + kThreads - 1) / kThreads, 1, kThreads}; }

// ---- the CPU ----

using Segments = std::vector<Segment>;

inline Tiles tiles_of(const Call& call, const Walk& walk, const Segments& segments) {
  return {walk, segments.data(), static_cast<int64_t>(segments.size()), static_cast<int>(call.columns.dtype)};
}

// Finds the sequences of all rows.
inline Segments segments_of(const char* op, const Walk& walk) {
  const Integers& cuts = walk.cuts;
  const auto at = [&](int64_t row, int64_t i) { return number_at(cuts, i, row); };
  Segments found;
  if (walk.cut == kStarts) {
    for (int64_t i = 0; i <= cuts.count; ++i) {
      const int64_t begin = i > 0 ? at(0, i - 1) : 0;
      PRECAST_CHECK(at(0, i) >= begin && at(0, i) <= walk.length,
                    "%s: starts[%lld] is %lld; needed %lld to %lld, as starts do not decrease and x has as many tokens",
                    op, printable(i), printable(at(0, i)), printable(begin), printable(walk.length));
      found.push_back({0, begin, at(0, i), i > 0 ? i - 1 : -1, i > 0 ? i - 1 : -1, i == 0});
    }
    found.push_back({0, at(0, cuts.count), walk.length, -1, -1, true});
    return found;
  }
  for (int64_t row = 0; row < walk.rows; ++row) {
    int64_t begin = 0;
    do {
      int64_t end = walk.length;
      if (walk.cut == kIndex && begin < end) {
        for (end = begin + 1; end < walk.length && at(row, end) == at(row, begin);) ++end;
      }
      const bool padding = walk.cut == kIndex && begin < end && at(row, begin) < 0;
      found.push_back({row, begin, end, begin == 0 ? row : -1, end == walk.length ? row : -1, padding});
      begin = end;
    } while (begin < walk.length);
  }
  return found;
}

}  // namespace precast::causal_conv1d
