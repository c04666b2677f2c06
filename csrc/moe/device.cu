// The movement of rows to experts and back. A position that a tensor does not have is skipped.
#include "entries.h"
#include "permute.cuh"
#include "unpermute.cuh"

namespace precast {
namespace moe {

MOE_KERNELS(KERNEL)

}  // namespace moe
}  // namespace precast
