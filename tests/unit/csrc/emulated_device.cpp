// The device code of families as C++ for the emulator. DEVICE_CODE includes its sources with every line of PTX
// replaced; each entry point takes the address of its arguments.
#include "emulator.h"

#define __device__
#define __forceinline__ inline
#define __shared__ static

#include DEVICE_CODE

extern const EmulatedKernel emulated_kernels[] = {KERNEL_TABLE{nullptr, nullptr}};
