// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns. `_wide`: the
// states are float32, and the rest is narrower.
#pragma once

#include "../gpu/dtypes.h"

#define STATE_UPDATE_OF(f, T, NARROW, KERNEL)                                                 \
  KERNEL(state_update_##f, UpdateArgs, 128, 768, 80, 0, update<T, T, T::kPerVector>)          \
  KERNEL(state_update_##f##_any, UpdateArgs, 128, 768, 80, 0, update<T, T, 1>)                \
  NARROW(KERNEL(state_update_##f##_wide, UpdateArgs, 128, 768, 80, 0, update<T, Float32, 4>)) \
  NARROW(KERNEL(state_update_##f##_wide_any, UpdateArgs, 128, 768, 80, 0, update<T, Float32, 1>))

#define SELECTIVE_STATE_UPDATE_KERNELS(KERNEL) PRECAST_DTYPES(STATE_UPDATE_OF, KERNEL)
