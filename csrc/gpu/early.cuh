// Programmatic launch overlap: the second of two launches starts while the first still runs. See LaunchShape::early.
#pragma once

#include "../gpu/device.cuh"

namespace precast {

// Lets blocks of the next launch start once every block of this one has called it or has ended.
DEVICE void next_launch_may_start() {
#if PRECAST_ARCH >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the previous launch has ended. Do not read its results earlier.
DEVICE void launch_before_has_ended() {
#if PRECAST_ARCH >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The beginning of a kernel that is launched early if `early` is not zero: the next launch may start, and the previous
// one has ended. A launch without it skips both, because large launches gain nothing from them.
DEVICE void begin_launch(int early) {
  if (early == 0) return;
  next_launch_may_start();
  launch_before_has_ended();
}

}  // namespace precast
