// The gated delta rule on the GPU. See host.cpp for which kernel serves which call.
#include "entries.h"
#include "states.cuh"

namespace precast {
namespace delta_rule {

DELTA_RULE_KERNELS(KERNEL)

}  // namespace delta_rule
}  // namespace precast
