// The CUDA driver, loaded at run time from libcuda.so.1. Nothing links to CUDA or includes its headers.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace precast {

// The driver's types as far as we need them: handles are pointers, results and devices are int.
using CuResult = int;
using CuDevice = int;
using CuHandle = void*;  // CUcontext, CUlibrary, CUmodule, CUkernel, CUfunction, CUstream

constexpr CuResult kCudaSuccess = 0;
constexpr int kComputeCapabilityMajor = 75;  // CUdevice_attribute
constexpr int kComputeCapabilityMinor = 76;
constexpr int kMultiprocessorCount = 16;
constexpr int kMaxSharedMemoryPerBlockOptin = 97;
constexpr int kMaxDynamicSharedSizeBytes = 8;        // CUfunction_attribute
constexpr int kNonPortableClusterSizeAllowed = 14;   // CUfunction_attribute
constexpr int kCaptureNone = 0;                      // CUstreamCaptureStatus
constexpr int kCaptureModeRelaxed = 2;               // CUstreamCaptureMode
constexpr int kModuleEagerLoading = 1;               // CUmoduleLoadingMode
constexpr int kClusterDimension = 4;                 // CUlaunchAttributeID
constexpr int kProgrammaticStreamSerialization = 6;  // CUlaunchAttributeID
constexpr int kDriver12_3 = 12030;

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  int padding;
  int value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], dynamic_shared_bytes;
  CuHandle stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "as the driver has them");

struct Driver {
  CuResult (*init)(unsigned);
  CuResult (*driver_get_version)(int*);
  CuResult (*get_error_name)(CuResult, const char**);
  CuResult (*get_error_string)(CuResult, const char**);
  CuResult (*device_get)(CuDevice*, int);
  CuResult (*device_get_attribute)(int*, int, CuDevice);
  CuResult (*primary_ctx_retain)(CuHandle*, CuDevice);
  CuResult (*ctx_get_current)(CuHandle*);
  CuResult (*ctx_set_current)(CuHandle);
  CuResult (*ctx_get_device)(CuDevice*);
  CuResult (*library_load_data)(CuHandle*, const void*, int*, void**, unsigned, int*, void**, unsigned);
  CuResult (*library_get_kernel)(CuHandle*, CuHandle, const char*);
  CuResult (*kernel_get_function)(CuHandle*, CuHandle);
  CuResult (*module_load_data)(CuHandle*, const void*);
  CuResult (*module_get_function)(CuHandle*, CuHandle, const char*);
  CuResult (*module_get_loading_mode)(int*);
  CuResult (*func_get_attribute)(int*, int, CuHandle);
  CuResult (*func_set_attribute)(CuHandle, int, int);
  CuResult (*stream_is_capturing)(CuHandle, int*);
  CuResult (*thread_exchange_capture_mode)(int*);
  CuResult (*launch_kernel)(CuHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuHandle,
                            void**, void**);
  CuResult (*launch_kernel_ex)(const LaunchConfig*, CuHandle, void**, void**);
  CuResult (*occupancy_max_active_clusters)(int*, CuHandle, const LaunchConfig*);
  CuResult (*func_load)(CuHandle);  // null before driver 12.4
  int version;                      // 13000 for 13.0
};

// Opens and initialises the driver at the first call. Raises if there is no driver or it is older than 12.0.
const Driver& driver();

// Returns a function from a library that this process has already loaded. Null if the library is not loaded or has no
// such function.
void* find_loaded(const char* library, const char* name);

// Returns the device's current stream, from the libtorch_cuda.so that this process has loaded.
CuHandle current_stream(int device);

// Raises "<call> failed: CUDA_ERROR_... (...)" for a result other than success.
[[noreturn]] void driver_failed(CuResult result, const char* call, const char* family, int device)
    __attribute__((cold));

inline void driver_check(CuResult result, const char* call, const char* family, int device) {
  if (__builtin_expect(result != kCudaSuccess, 0)) driver_failed(result, call, family, device);
}

}  // namespace precast
