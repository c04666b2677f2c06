// Checks of the norms' tensors. No check writes anything.
#pragma once

#include "../host/rows.h"
#include "cpu.h"

namespace precast {
namespace rms_norm {

inline Norm check_norm(const char* op, const Tensor& x, const Tensor& weight, double eps, int64_t casting,
                       const Named* others, int count) {
  Norm norm = check_x(op, x);
  PRECAST_CHECK(casting >= kCastingNone && casting <= kCastingGemma, "%s: casting is %lld; needed 0, 1 or 2", op,
                printable(casting));
  check_eps(op, eps);
  check_columns_kind(op, {"weight", weight}, x, &norm);
  for (int i = 0; i < count; ++i) check_kind(op, others[i], x);
  check_columns(op, {"weight", weight}, norm);
  for (int i = 0; i < count; ++i) check_shape(op, others[i], x);
  return norm;
}

}  // namespace rms_norm

namespace layer_norm {

// Null stands for an absent tensor.
inline Norm check_norm(const char* op, const Tensor& x, const Tensor* weight, const Tensor* bias, const Tensor* grad,
                       double eps) {
  Norm norm = check_x(op, x);
  check_eps(op, eps);
  if (weight != nullptr) check_columns_kind(op, {"weight", *weight}, x, &norm);
  if (bias != nullptr && weight != nullptr) check_kind(op, {"bias", *bias}, *weight, "weight");
  if (bias != nullptr && weight == nullptr) check_kind(op, {"bias", *bias}, x);
  if (grad != nullptr) check_kind(op, {"grad", *grad}, x);
  if (weight != nullptr) check_columns(op, {"weight", *weight}, norm);
  if (bias != nullptr) check_columns(op, {"bias", *bias}, norm);
  if (grad != nullptr) check_shape(op, {"grad", *grad}, x);
  return norm;
}

}  // namespace layer_norm
}  // namespace precast
