// A libcuda.so.1 of two devices that records every call and the arguments of each launch.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char record[1 << 14];
static void* current;
static int fail;
#define NOTE(...) snprintf(record + strlen(record), sizeof(record) - strlen(record), __VA_ARGS__)

const char* fake_record(void) {
  static char taken[sizeof(record)];
  memcpy(taken, record, sizeof(taken));
  record[0] = 0;
  return taken;
}
void fake_fail(int status) { fail = status; }
int cuInit(unsigned flags) { return 0; }
int cuGetErrorName(int status, const char** name) { return *name = "CUDA_ERROR_INVALID_IMAGE", 0; }
int cuGetErrorString(int status, const char** text) { return *text = "the driver's words", 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)(intptr_t)(100 + device), 0; }
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxSetCurrent(void* context) { return NOTE("context(%d) ", (int)(intptr_t)context), current = context, 0; }
int cuModuleLoadData(void** module, const void* data) {
  NOTE("module(%s) ", (const char*)data);
  return *module = (void*)7, fail;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  NOTE("function(%s) ", name);
  return *function = (void*)9, 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) { return NOTE("set(%d, %d) ", attribute, value), 0; }
int cuFuncGetAttribute(int* value, int attribute, void* function) { return *value = attribute * 10, 0; }
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** values, void** extra) {
  NOTE("launch(%u %u %u, %u %u %u, %u, %d, %llx, %g) ", gx, gy, gz, bx, by, bz, shared, (int)(intptr_t)stream,
       *(unsigned long long*)values[0], *(float*)values[1]);
  return 0;
}
struct attribute {
  int id;
  char pad[4];
  unsigned value[16];
};
struct config {
  unsigned gx, gy, gz, bx, by, bz, shared;
  void* stream;
  struct attribute* attributes;
  unsigned count;
};
int cuLaunchKernelEx(const struct config* c, void* function, void** values, void** extra) {
  const struct attribute* a = c->attributes;
  NOTE("cluster(%u %u %u, %u %u %u, %u, %d, %u: %d %u %u %u) ", c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared,
       (int)(intptr_t)c->stream, c->count, a->id, a->value[0], a->value[1], a->value[2]);
  return 0;
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const uint64_t* sizes,
                           const uint64_t* strides, const unsigned* box, const unsigned* steps, int interleave,
                           int swizzle, int l2, int fill) {
  NOTE("map(%d, %u, %d, %llu %llu, %llu, %u %u, %u %u, %d %d %d %d) ", type, rank, (int)((uintptr_t)map % 64),
       (unsigned long long)sizes[0], (unsigned long long)sizes[1], (unsigned long long)strides[0], box[0], box[1],
       steps[0], steps[1], interleave, swizzle, l2, fill);
  memset(map, 42, 128);
  return 0;
}
