// A libcuda.so.1 and a libtorch_cuda.so in one file: two devices, contexts and libraries that are only numbers, and a
// record of every call. What it answers is set by the test through `fake_set`.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define E extern "C" __attribute__((visibility("default")))

namespace {
struct {
  int version = 13000, capability[2] = {90, 80}, loading_mode = 2, capturing = 0, missing_kernel = 0, launch_result = 0,
      occupancy_result = 0, init_result = 0, context_result = 0, load_result = 0, load_seconds = 0, shared = 232448,
      shared_limit = 0;
} fake;
thread_local void* current = nullptr;
char record[1 << 14];

void note(const char* text, long long value = -1) {
  const size_t used = strlen(record);
  if (value < 0) {
    snprintf(record + used, sizeof(record) - used, "%s ", text);
  } else {
    snprintf(record + used, sizeof(record) - used, "%s(%lld) ", text, value);
  }
}

void* handle(long long number) { return reinterpret_cast<void*>(number); }
long long number(void* handle) { return reinterpret_cast<long long>(handle); }
}  // namespace

E void fake_set(const char* name, int value) {
  if (strcmp(name, "version") == 0) fake.version = value;
  if (strcmp(name, "capability0") == 0) fake.capability[0] = value;
  if (strcmp(name, "capability1") == 0) fake.capability[1] = value;
  if (strcmp(name, "loading_mode") == 0) fake.loading_mode = value;
  if (strcmp(name, "capturing") == 0) fake.capturing = value;
  if (strcmp(name, "missing_kernel") == 0) fake.missing_kernel = value;
  if (strcmp(name, "launch_result") == 0) fake.launch_result = value;
  if (strcmp(name, "occupancy_result") == 0) fake.occupancy_result = value;
  if (strcmp(name, "init_result") == 0) fake.init_result = value;
  if (strcmp(name, "context_result") == 0) fake.context_result = value;
  if (strcmp(name, "load_result") == 0) fake.load_result = value;
  if (strcmp(name, "load_seconds") == 0) fake.load_seconds = value;
  if (strcmp(name, "shared") == 0) fake.shared = value;
}
E const char* fake_record() {
  static char taken[sizeof(record)];
  memcpy(taken, record, sizeof(taken));
  record[0] = '\0';
  return taken;
}

E int cuInit(unsigned) { return fake.init_result; }
E int cuDriverGetVersion(int* version) { return *version = fake.version, 0; }
E int cuGetErrorName(int result, const char** name) {
  *name = "CUDA_ERROR_UNKNOWN";
  if (result == 2) *name = "CUDA_ERROR_OUT_OF_MEMORY";
  if (result == 3) *name = "CUDA_ERROR_NOT_INITIALIZED";
  if (result == 200) *name = "CUDA_ERROR_INVALID_IMAGE";
  if (result == 218) *name = "CUDA_ERROR_INVALID_PTX";
  if (result == 500) *name = "CUDA_ERROR_NOT_FOUND";
  if (result == 700) *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
  if (result == 709) *name = "CUDA_ERROR_CONTEXT_IS_DESTROYED";
  return 0;
}
E int cuGetErrorString(int, const char** text) { return *text = "the driver's words", 0; }
E int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal < 2 ? 0 : 101; }
E int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = fake.capability[device];
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 97 ? fake.shared : 132;
  return 0;
}
// The primary context of device 0 is 100, of device 1 it is 101; 200 and 201 are other contexts of theirs.
E int cuDevicePrimaryCtxRetain(void** context, int device) {
  note("retain", device);
  return *context = handle(100 + device), 0;
}
E int cuCtxGetCurrent(void** context) { return *context = current, fake.context_result; }
E int cuCtxSetCurrent(void* context) {
  note("set_current", number(context));
  return current = context, 0;
}
E int cuCtxGetDevice(int* device) { return *device = static_cast<int>(number(current) % 100), 0; }
E int cuLibraryLoadData(void** library, const void* data, int*, void**, unsigned, int*, void**, unsigned) {
  note("library", static_cast<long long>(strlen(static_cast<const char*>(data))));
  if (fake.load_seconds != 0) sleep(fake.load_seconds);
  if (fake.load_result != 0) return fake.load_result;
  return *library = handle(7), 0;
}
E int cuLibraryGetKernel(void** kernel, void*, const char* name) {
  if (fake.missing_kernel != 0 && strstr(name, "any") != nullptr) return 500;
  return *kernel = handle(1000 + number(current)), 0;
}
E int cuKernelGetFunction(void** function, void*) { return *function = handle(2000 + number(current)), 0; }
E int cuModuleLoadData(void** module, const void*) {
  note("module", number(current));
  if (fake.load_result != 0) return fake.load_result;
  return *module = handle(8), 0;
}
E int cuModuleGetFunction(void** function, void*, const char*) { return *function = handle(3000 + number(current)), 0; }
E int cuModuleGetLoadingMode(int* mode) { return *mode = fake.loading_mode, 0; }
E int cuFuncGetAttribute(int* value, int attribute, void*) { return *value = attribute == 6 ? 90 : 0, 0; }
E int cuFuncSetAttribute(void*, int attribute, int value) {
  if (attribute == 8) fake.shared_limit = value;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  return 0;
}
E int fake_shared_limit() { return fake.shared_limit; }
E int cuFuncLoad(void*) { return 0; }
E int cuStreamIsCapturing(void*, int* status) { return *status = fake.capturing, 0; }
E int cuThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int held = 0;
  const int before = held;
  held = *mode;
  *mode = before;
  return 0;
}
E int cuLaunchKernel(void* function, unsigned gx, unsigned, unsigned, unsigned bx, unsigned by, unsigned, unsigned,
                     void* stream, void**, void**) {
  note("launch", number(function));
  note("in", number(current));
  note("stream", number(stream));
  static_cast<void>(gx + bx + by);
  return fake.launch_result;
}
struct Attribute {
  int id, padding, value[16];
};
struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  const Attribute* attributes;
  unsigned count;
};
E int cuOccupancyMaxActiveClusters(int* count, void*, const Config* config) {
  note("occupancy", config->attributes[config->count - 1].value[0]);
  return *count = 16, fake.occupancy_result;
}
E int cuLaunchKernelEx(const Config* config, void* function, void**, void**) {
  note("launch", number(function));
  note("in", number(current));
  note("stream", number(config->stream));
  for (unsigned i = 0; i < config->count; ++i) {
    note("attribute", config->attributes[i].id);
    note("value", config->attributes[i].value[0]);
  }
  note("blocks", config->grid[0] * config->grid[1] * config->grid[2]);
  note("threads", config->block[0] * config->block[1] * config->block[2]);
  note("shared", config->shared);
  return fake.launch_result;
}

// The current stream of a device, as torch would give it.
E int aoti_torch_get_current_cuda_stream(int device, void** stream) { return *stream = handle(40 + device), 0; }

// The way into launch(), which a library does not export.
E int fake_context(long long context) { return current = handle(context), 0; }
E long long fake_current() { return number(current); }
