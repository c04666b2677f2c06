// The choice of experts for tokens, and the places of pairs of a token and an expert. Everything is deterministic: no
// atomics, and every order is fixed.
#include "entries.h"
#include "gate.cuh"
#include "sort.cuh"

namespace precast {
namespace moe {

MOE_ROUTING_KERNELS(KERNEL)

}  // namespace moe
}  // namespace precast
