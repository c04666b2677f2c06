// Checks of the RMSNorm ops' tensors. No check writes anything.
#pragma once

#include "../common/rows.h"
#include "cpu.h"

namespace precast::rms_norm {

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

}  // namespace precast::rms_norm
