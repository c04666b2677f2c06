#include "driver.h"

#include <atomic>

#include "../host/checks.h"
#include "../host/dynamic_linker.h"
#include "../host/lock.h"
#include "../host/torch_names.h"

namespace precast {
namespace {

Mutex mutex;

// Advice for errors (cuda.h, CUresult) whose message in the driver does not help.
const char* advice(CuResult result) {
  switch (result) {
    case 3:  // NOT_INITIALIZED
      return "; a process that was forked from one that uses CUDA cannot use it: start it with spawn, not with fork";
    case 2:  // OUT_OF_MEMORY
      return "; free memory of the GPU, then call again";
    case 4:    // DEINITIALIZED
    case 201:  // INVALID_CONTEXT
    case 400:  // INVALID_HANDLE
    case 709:  // CONTEXT_IS_DESTROYED
      return "; another library has destroyed or reset the CUDA context of this process: restart the process";
    case 200:  // INVALID_IMAGE
    case 209:  // NO_BINARY_FOR_GPU
    case 218:  // INVALID_PTX
    case 222:  // UNSUPPORTED_PTX_VERSION
      return "; the driver refuses the device code: install precast again, or build it here with PRECAST_JIT=jit";
    default:
      return "";
  }
}

// Looks up one function, or raises with its name.
template <class Function>
void resolve(void* library, Function& function, const char* name) {
  void* address = dlsym(library, name);
  PRECAST_CHECK(address != nullptr,
                "precast: the CUDA driver (libcuda.so.1) has no function %s; needed: driver 12.0 or newer", name);
  function = reinterpret_cast<Function>(address);
}

void open_driver(Driver& d) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    fail("precast: no CUDA driver: libcuda.so.1 cannot be opened (%s); needed: an NVIDIA driver 12.0 or newer",
         reason == nullptr ? "no reason given" : reason);
  }
  resolve(library, d.init, "cuInit");
  resolve(library, d.driver_get_version, "cuDriverGetVersion");
  resolve(library, d.get_error_name, "cuGetErrorName");
  resolve(library, d.get_error_string, "cuGetErrorString");
  resolve(library, d.device_get, "cuDeviceGet");
  resolve(library, d.device_get_attribute, "cuDeviceGetAttribute");
  resolve(library, d.primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  resolve(library, d.ctx_get_current, "cuCtxGetCurrent");
  resolve(library, d.ctx_set_current, "cuCtxSetCurrent");
  resolve(library, d.ctx_get_device, "cuCtxGetDevice");
  resolve(library, d.library_load_data, "cuLibraryLoadData");
  resolve(library, d.library_get_kernel, "cuLibraryGetKernel");
  resolve(library, d.kernel_get_function, "cuKernelGetFunction");
  resolve(library, d.module_load_data, "cuModuleLoadData");
  resolve(library, d.module_get_function, "cuModuleGetFunction");
  resolve(library, d.module_get_loading_mode, "cuModuleGetLoadingMode");
  resolve(library, d.func_get_attribute, "cuFuncGetAttribute");
  resolve(library, d.func_set_attribute, "cuFuncSetAttribute");
  resolve(library, d.stream_is_capturing, "cuStreamIsCapturing");
  resolve(library, d.thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  resolve(library, d.launch_kernel, "cuLaunchKernel");
  resolve(library, d.launch_kernel_ex, "cuLaunchKernelEx");
  resolve(library, d.occupancy_max_active_clusters, "cuOccupancyMaxActiveClusters");
  d.func_load = reinterpret_cast<CuResult (*)(CuHandle)>(dlsym(library, "cuFuncLoad"));

  CuResult result = d.init(0);
  if (result == kCudaSuccess) result = d.driver_get_version(&d.version);
  const char* name = nullptr;
  if (result != kCudaSuccess) d.get_error_name(result, &name);
  PRECAST_CHECK(result == kCudaSuccess, "precast: the CUDA driver does not start: cuInit gives %s%s",
                name == nullptr ? "an unknown error" : name, advice(result));
}

using StreamFunction = int32_t (*)(int32_t device, void** stream);

StreamFunction find_stream_function() {
  // RTLD_NOLOAD: only the copy that torch itself uses. Another copy would have its own streams.
  void* library = dlopen(kCurrentStream.library, RTLD_NOW | RTLD_NOLOAD);
  PRECAST_CHECK(library != nullptr,
                "precast: a kernel was asked to run on a GPU, but this process has not loaded libtorch_cuda.so: the "
                "running torch has no CUDA; needed: a CUDA build of torch");
  void* address = dlsym(library, kCurrentStream.name);
  PRECAST_CHECK(address != nullptr,
                "precast: libtorch_cuda.so has no aoti_torch_get_current_cuda_stream; needed: torch 2.4.1 or newer");
  return reinterpret_cast<StreamFunction>(address);
}

}  // namespace

void* find_loaded(const char* library, const char* name) {
  void* found = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  return found == nullptr ? nullptr : dlsym(found, name);
}

const Driver& driver() {
  static std::atomic<const Driver*> opened{nullptr};
  const Driver* ready = opened.load(std::memory_order_acquire);
  if (__builtin_expect(ready != nullptr, 1)) return *ready;
  const Lock lock(mutex);
  static Driver table{};
  if (opened.load(std::memory_order_relaxed) == nullptr) {
    open_driver(table);
    opened.store(&table, std::memory_order_release);
  }
  return table;
}

CuHandle current_stream(int device) {
  static std::atomic<StreamFunction> found{nullptr};
  StreamFunction function = found.load(std::memory_order_relaxed);
  if (__builtin_expect(function == nullptr, 0)) {
    function = find_stream_function();  // the same answer for every thread
    found.store(function, std::memory_order_relaxed);
  }
  CuHandle stream = nullptr;
  PRECAST_CHECK(function(device, &stream) == 0, "precast: torch gives no current stream for cuda:%d", device);
  return stream;
}

void driver_failed(CuResult result, const char* call, const char* family, int device) {
  const char* name = nullptr;
  const char* text = nullptr;
  driver().get_error_name(result, &name);
  driver().get_error_string(result, &text);
  fail("precast: %s on cuda:%d: %s failed: %s (%s)%s", family, device, call, name == nullptr ? "unknown error" : name,
       text == nullptr ? "no text" : text, advice(result));
}

}  // namespace precast
