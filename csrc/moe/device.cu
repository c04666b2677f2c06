// Moves rows to experts and back. Positions outside of a tensor are skipped.
#include "entries.h"
#include "permute.cuh"
#include "unpermute.cuh"

namespace precast {
namespace moe {

MOE_KERNELS(KERNEL)

}  // namespace moe
}  // namespace precast
