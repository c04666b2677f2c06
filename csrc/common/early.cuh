// Two launches, of which the second starts while the first still runs: see LaunchShape::early.
#pragma once

#include "device.cuh"

namespace precast {

// The blocks of the next launch may take their places as soon as every block of this one has said so, or has ended.
DEVICE void next_launch_may_start() {
#if PRECAST_ARCH >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the launch before has ended. Nothing that it wrote may be read earlier.
DEVICE void launch_before_has_ended() {
#if PRECAST_ARCH >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace precast
