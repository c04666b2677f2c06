// Checks of the LayerNorm ops' tensors. No check writes anything.
#pragma once

#include "../common/rows.h"
#include "cpu.h"

namespace precast::layer_norm {

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

}  // namespace precast::layer_norm
