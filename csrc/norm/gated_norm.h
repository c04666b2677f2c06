// Checks of the tensors of norms with a gate. No check writes anything.
#pragma once

#include "../gpu/row_policy.h"
#include "args.h"
#include "cpu.h"

namespace precast::gated_norm {

// A checked call: `norm.rows` tokens of `groups` groups of `norm.hidden` columns.
struct Gated {
  Norm norm;
  int64_t groups;
};

// Null stands for an absent tensor. `group`: columns that are normalised together; 0: all.
inline Gated check_gated(const char* op, const Tensor& x, const Tensor* gate, const Tensor* weight, const Tensor* grad,
                         double eps, int64_t casting, int64_t group) {
  Gated gated = {check_x(op, x), 1};
  Norm& norm = gated.norm;
  check_eps(op, eps);
  PRECAST_CHECK(casting == rms_norm::kCastingNone || casting == rms_norm::kCastingLlama,
                "%s: casting is %lld; needed 0 or 1", op, printable(casting));
  PRECAST_CHECK(group == 0 || (group > 0 && norm.hidden % group == 0),
                "%s: group is %lld and x has %lld columns; needed a divisor, or 0 for one group", op, printable(group),
                printable(norm.hidden));
  if (weight != nullptr) check_columns_kind(op, {"weight", *weight}, x, &norm);
  if (gate != nullptr) check_kind(op, {"gate", *gate}, x);
  if (grad != nullptr) check_kind(op, {"grad", *grad}, x);
  if (weight != nullptr) check_columns(op, {"weight", *weight}, norm);
  if (gate != nullptr) check_shape(op, {"gate", *gate}, x);
  if (grad != nullptr) check_shape(op, {"grad", *grad}, x);
  if (group > 0 && norm.hidden > 0) {
    gated.groups = norm.hidden / group;
    norm.hidden = group;
  }
  return gated;
}

// How a call computes.
struct Options {
  double eps;
  int64_t casting;
  bool norm_first, sigmoid, by_length;
};

inline float scale_of(const Gated& gated, const Options& options) {
  return options.by_length ? 1.0f : static_cast<float>(1.0 / static_cast<double>(gated.norm.hidden));
}

inline ForwardArgs args_of(const Gated& gated, const ReadRows& x, const ReadRows& gate, const ReadRows& weight, void* y,
                           const Options& options) {
  const int64_t bytes = gated.norm.element_bytes();
  ForwardArgs args = {};
  args.x = x.data();
  args.gate = gate.data();
  args.weight = weight.data();
  args.y = static_cast<char*>(y);
  args.x_stride = x.stride() * bytes;
  args.gate_stride = gate.stride() * bytes;
  args.hidden = gated.norm.hidden;
  args.groups = division_by(gated.groups);
  args.scale = scale_of(gated, options);
  args.eps = static_cast<float>(options.eps);
  args.llama = options.casting == rms_norm::kCastingLlama;
  args.gate_first = !options.norm_first;
  args.sigmoid = options.sigmoid;
  args.wide = gated.norm.wide_columns;
  return args;
}

inline uint64_t misaligned(const Gated& gated, const ForwardArgs& args) {
  const int64_t row = args.hidden * gated.norm.element_bytes();
  return misalignment(args.x, args.x_stride | row) | misalignment(args.gate, args.gate_stride) |
         misalignment(args.weight, args.hidden * gated.norm.column_bytes()) | misalignment(args.y, row);
}

// One group of all tokens.
inline GatedRows rows_of(const Gated& gated, const ForwardArgs& args, int64_t group) {
  const int64_t bytes = gated.norm.element_bytes(), offset = group * args.hidden;
  const auto moved = [&](const char* data, int64_t each) { return data != nullptr ? data + offset * each : nullptr; };
  GatedRows rows = {};
  rows.x = moved(args.x, bytes);
  rows.gate = moved(args.gate, bytes);
  rows.weight = moved(args.weight, gated.norm.column_bytes());
  rows.y = args.y + offset * bytes;
  rows.rows = gated.norm.rows;
  rows.hidden = args.hidden;
  rows.x_stride = args.x_stride / bytes;
  rows.gate_stride = args.gate_stride / bytes;
  rows.y_stride = args.hidden * gated.groups;
  rows.scale = args.scale;
  rows.eps = args.eps;
  rows.dtype = static_cast<int>(gated.norm.dtype);
  rows.llama = args.llama != 0;
  rows.gate_first = args.gate_first != 0;
  rows.sigmoid = args.sigmoid != 0;
  rows.wide_columns = gated.norm.wide_columns;
  return rows;
}

constexpr int64_t kMostRows = int64_t{1} << 31;

inline void check_rows(const char* op, const Gated& gated) {
  PRECAST_CHECK(gated.norm.rows * gated.groups < kMostRows, "%s: x has %lld rows in all; needed fewer than 2^31", op,
                printable(gated.norm.rows * gated.groups));
}

}  // namespace precast::gated_norm
