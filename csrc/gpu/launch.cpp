#include "launch.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "../host/checks.h"
#include "../host/lock.h"
#include "driver.h"
#include "row_launch.h"

namespace precast {

// One cubin or PTX. Devices of a family that received the same bytes share it.
struct Image {
  char* data;  // followed by a NUL, because the driver reads PTX up to it
  size_t bytes;
  char target[16];
  CuHandle library = nullptr;  // null until the first device loads it
};

// `kernel` belongs to no context and can be launched in any. It is null if the image was loaded as a module.
struct Function {
  CuHandle function;
  CuHandle kernel;
};

struct Loaded {
  CuHandle context;  // the primary context that the functions belong to
  bool early;        // the device code waits by itself if a launch starts early, and may have clusters
  bool wider;        // clusters may have more blocks than every GPU with clusters has: tried on 9.0
  Function functions[1];
};

namespace {

Mutex mutex;  // for everything off the hot path; never held while waiting for Python

struct Target {
  bool ptx;
  int number;   // 90
  char suffix;  // 'a', 'f' or '\0'
};

Target parse_target(const char* text, const char* family) {
  const bool ptx = strncmp(text, "compute_", 8) == 0;
  const char* at = text + (ptx ? 8 : 3);
  int number = 0;
  int digits = 0;
  if (ptx || strncmp(text, "sm_", 3) == 0) {
    for (; *at >= '0' && *at <= '9' && digits < 3; ++at, ++digits) number = number * 10 + (*at - '0');
  }
  const bool whole = digits >= 2 && (*at == '\0' || ((*at == 'a' || *at == 'f') && at[1] == '\0'));
  PRECAST_CHECK(whole, "precast: %s: '%.40s' is not a GPU target such as sm_90", family, text);
  return {ptx, number, *at};
}

bool is_tegra(int number) { return number == 72 || number == 87 || number == 101 || number == 110; }

// The driver would find this out too, but our message names the file's target. PTX of a base target runs on any later
// GPU. Machine code stays within its major version. Integrated chips and `a` targets match only themselves.
bool target_fits(const Target& target, int device) {
  if (target.suffix == 'a') return target.number == device;
  if (target.ptx && target.suffix == '\0') return target.number <= device;
  if (target.number / 10 != device / 10 || target.number > device) return false;
  return target.number == device || (!is_tegra(target.number) && !is_tegra(device));
}

DeviceSlot& slot_of(KernelFamily& family, int device) {
  PRECAST_CHECK(device >= 0 && device < kMaxDevices, "precast: %s: there is no cuda:%d; at most %d devices are served",
                family.name, device, kMaxDevices);
  return family.devices[device];
}

CuDevice device_handle(const Driver& cuda, const char* family, int device) {
  CuDevice handle = 0;
  driver_check(cuda.device_get(&handle, device), "cuDeviceGet", family, device);
  return handle;
}

// The device's primary context, in which torch works. Retained once for the life of the process.
CuHandle primary_context(const Driver& cuda, const char* family, int device) {
  static std::atomic<CuHandle> contexts[kMaxDevices];
  CuHandle context = contexts[device].load(std::memory_order_acquire);
  if (context == nullptr) {
    driver_check(cuda.primary_ctx_retain(&context, device_handle(cuda, family, device)), "cuDevicePrimaryCtxRetain",
                 family, device);
    contexts[device].store(context, std::memory_order_release);
  }
  return context;
}

// Makes a context current if the thread has none, or one of another device, and restores the previous one afterwards. A
// new thread has none, and launches would fail in it. A non-primary context of the same device was chosen on purpose
// and stays.
class ContextGuard {
 public:
  ContextGuard(const Driver& cuda, CuHandle wanted, const char* family, int device) : cuda_(cuda) {
    CuHandle current = nullptr;
    driver_check(cuda.ctx_get_current(&current), "cuCtxGetCurrent", family, device);
    if (__builtin_expect(current == wanted, 1)) return;
    primary_ = false;
    CuDevice of_current = -1;
    if (current != nullptr && cuda.ctx_get_device(&of_current) == kCudaSuccess &&
        of_current == device_handle(cuda, family, device)) {
      return;
    }
    driver_check(cuda.ctx_set_current(wanted), "cuCtxSetCurrent", family, device);
    primary_ = true;
    changed_ = true;
    before_ = current;
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;
  ~ContextGuard() {
    if (changed_) cuda_.ctx_set_current(before_);
  }
  bool primary() const { return primary_; }

 private:
  const Driver& cuda_;
  CuHandle before_ = nullptr;
  bool changed_ = false;
  bool primary_ = true;
};

// ---- loading: everything up to the release-store of `loaded` runs under the mutex ----

void check_device(const Driver& cuda, const KernelFamily& family, const DeviceSlot& slot, int device) {
  const CuDevice handle = device_handle(cuda, family.name, device);
  int major = 0;
  int minor = 0;
  driver_check(cuda.device_get_attribute(&major, kComputeCapabilityMajor, handle), "cuDeviceGetAttribute", family.name,
               device);
  driver_check(cuda.device_get_attribute(&minor, kComputeCapabilityMinor, handle), "cuDeviceGetAttribute", family.name,
               device);
  PRECAST_CHECK(major == slot.believed_major && minor == slot.believed_minor,
                "precast: %s: the loader took cuda:%d for compute capability %d.%d, the driver says %d.%d; the order "
                "of the devices differs: check CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES, set before the first use",
                family.name, device, slot.believed_major, slot.believed_minor, major, minor);
  PRECAST_CHECK(target_fits(parse_target(slot.image->target, family.name), major * 10 + minor),
                "precast: %s: the device code for cuda:%d is for %s and does not run on compute capability %d.%d",
                family.name, device, slot.image->target, major, minor);
}

// Before 12.3 the driver may not load code while a stream is captured.
void check_capture(const Driver& cuda, const KernelFamily& family, int device, CuHandle stream) {
  if (cuda.version >= kDriver12_3) return;
  int status = kCaptureNone;
  const CuResult result = cuda.stream_is_capturing(stream, &status);
  PRECAST_CHECK(result == kCudaSuccess && status == kCaptureNone,
                "precast: %s is not loaded on cuda:%d yet, and CUDA driver %d.%d cannot load it while a graph is "
                "captured; call precast.load(\"%s\", \"cuda:%d\") before the capture",
                family.name, device, cuda.version / 1000, cuda.version % 1000 / 10, family.name, device);
}

// While this thread captures a graph, loading would count as an unsafe call and end the capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& cuda) : cuda_(cuda) { cuda_.thread_exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { cuda_.thread_exchange_capture_mode(&mode_); }

 private:
  const Driver& cuda_;
  int mode_ = kCaptureModeRelaxed;
};

// Under lazy loading a library serves every context and costs nothing in unused ones. Under eager loading the driver
// would push it into all contexts of the process, including GPUs it does not fit. There it is loaded as a module of one
// context.
Function resolve(const Driver& cuda, const KernelFamily& family, int device, CuHandle library, CuHandle module,
                 const Entry& entry, bool wider) {
  Function found{nullptr, nullptr};
  CuResult result = kCudaSuccess;
  if (module != nullptr) {
    result = cuda.module_get_function(&found.function, module, entry.name);
  } else {
    result = cuda.library_get_kernel(&found.kernel, library, entry.name);
    if (result == kCudaSuccess) result = cuda.kernel_get_function(&found.function, found.kernel);
  }
  driver_check(result, entry.name, family.name, device);
  if (entry.dynamic_shared_bytes > 48 * 1024) {
    const int bytes = std::min(entry.dynamic_shared_bytes, block_shared_bytes(device) - kStaticSharedBytes);
    driver_check(cuda.func_set_attribute(found.function, kMaxDynamicSharedSizeBytes, bytes), "cuFuncSetAttribute",
                 family.name, device);
  }
  if (entry.dynamic_shared_bytes == kMostClusterBytes && wider) {
    driver_check(cuda.func_set_attribute(found.function, kNonPortableClusterSizeAllowed, 1), "cuFuncSetAttribute",
                 family.name, device);
  }
  if (cuda.func_load != nullptr) driver_check(cuda.func_load(found.function), "cuFuncLoad", family.name, device);
  return found;
}

const Loaded* load(const Driver& cuda, KernelFamily& family, DeviceSlot& slot, int device) {
  const CuHandle context = primary_context(cuda, family.name, device);
  const RelaxedCapture relaxed(cuda);
  int mode = 0;
  driver_check(cuda.module_get_loading_mode(&mode), "cuModuleGetLoadingMode", family.name, device);
  CuHandle module = nullptr;
  if (mode == kModuleEagerLoading) {
    driver_check(cuda.module_load_data(&module, slot.image->data), "cuModuleLoadData", family.name, device);
  } else if (slot.image->library == nullptr) {
    driver_check(
        cuda.library_load_data(&slot.image->library, slot.image->data, nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData", family.name, device);
  }
  const size_t bytes = sizeof(Loaded) + sizeof(Function) * static_cast<size_t>(family.entry_count);
  Loaded* loaded = static_cast<Loaded*>(calloc(1, bytes));
  if (loaded == nullptr) throw std::bad_alloc();
  loaded->context = context;
  // Code for older targets does not wait, and a driver before 12.3 cannot capture such a launch.
  loaded->early = parse_target(slot.image->target, family.name).number >= 90 && cuda.version >= kDriver12_3;
  loaded->wider = loaded->early && parse_target(slot.image->target, family.name).number / 10 == 9;
  try {
    for (int i = 0; i < family.entry_count; ++i) {
      loaded->functions[i] =
          resolve(cuda, family, device, slot.image->library, module, family.entries[i], loaded->wider);
    }
  } catch (...) {
    free(loaded);
    throw;
  }
  return loaded;
}

__attribute__((cold, noinline)) const Loaded* make_ready(KernelFamily& family, int device) {
  DeviceSlot& slot = slot_of(family, device);
  const Lock lock(mutex);
  const Loaded* loaded = slot.loaded.load(std::memory_order_relaxed);
  if (loaded != nullptr) return loaded;
  if (slot.refusal != nullptr) fail("%s", slot.refusal);
  PRECAST_CHECK(slot.image != nullptr,
                "precast: %s has no device code for cuda:%d; call precast.load(\"%s\", \"cuda:%d\")", family.name,
                device, family.name, device);
  const Driver& cuda = driver();
  check_device(cuda, family, slot, device);
  const ContextGuard guard(cuda, primary_context(cuda, family.name, device), family.name, device);
  check_capture(cuda, family, device, current_stream(device));
  loaded = load(cuda, family, slot, device);
  slot.loaded.store(loaded, std::memory_order_release);
  return loaded;
}

inline const Loaded& ready(KernelFamily& family, int device) {
  if (__builtin_expect(static_cast<unsigned>(device) < kMaxDevices, 1)) {
    const Loaded* loaded = family.devices[device].loaded.load(std::memory_order_acquire);
    if (__builtin_expect(loaded != nullptr, 1)) return *loaded;
  }
  return *make_ready(family, device);
}

char* copy_bytes(const void* data, size_t bytes) {
  char* copy = static_cast<char*>(malloc(bytes + 1));
  if (copy == nullptr) throw std::bad_alloc();
  memcpy(copy, data, bytes);
  copy[bytes] = '\0';
  return copy;
}

// Stores the new text before it frees the old one, so that a process forked in between still has a valid text.
void replace_refusal(DeviceSlot& slot, char* text) {
  char* const before = slot.refusal;
  slot.refusal = text;
  free(before);
}

Image* image_of(KernelFamily& family, const void* data, size_t bytes, const char* target) {
  for (DeviceSlot& slot : family.devices) {
    Image* image = slot.image;
    if (image != nullptr && image->bytes == bytes && strcmp(image->target, target) == 0 &&
        memcmp(image->data, data, bytes) == 0) {
      return image;
    }
  }
  Image* image = new Image{};
  image->data = copy_bytes(data, bytes);
  image->bytes = bytes;
  strcpy(image->target, target);  // parse_target has checked that it is short
  return image;
}

// Fills the attributes that a launch needs, and describes it.
LaunchConfig config_of(const LaunchShape& shape, CuHandle stream, LaunchAttribute (&attributes)[2]) {
  unsigned count = 0;
  if (shape.early) attributes[count++] = {kProgrammaticStreamSerialization, 0, {1}};
  if (shape.cluster > 1) attributes[count++] = {kClusterDimension, 0, {static_cast<int>(shape.cluster), 1, 1}};
  return {{shape.blocks_x, shape.blocks_y, 1},
          {shape.threads_x, shape.threads_y, 1},
          shape.dynamic_shared_bytes,
          stream,
          attributes,
          count};
}

}  // namespace

void launch(KernelFamily& family, int device, int entry, const LaunchShape& shape, void** arguments) {
  PRECAST_CHECK(
      entry >= 0 && entry < family.entry_count,
      "precast: %s on cuda:%d: found entry point %d; needed 0 to %d. The op chose a kernel that does not exist "
      "for this dtype, which is a bug of precast",
      family.name, device, entry, family.entry_count - 1);
  const Loaded& loaded = ready(family, device);
  const Driver& cuda = driver();
  const ContextGuard guard(cuda, loaded.context, family.name, device);
  const Function& function = loaded.functions[entry];
  const CuHandle handle = __builtin_expect(guard.primary(), 1) ? function.function : function.kernel;
  PRECAST_CHECK(handle != nullptr, "precast: %s on cuda:%d: the entry point %s is not loaded in this context",
                family.name, device, family.entries[entry].name);
  CuResult result;
  if ((shape.early || shape.cluster > 1) && loaded.early) {
    LaunchAttribute attributes[2];
    const LaunchConfig config = config_of(shape, current_stream(device), attributes);
    result = cuda.launch_kernel_ex(&config, handle, arguments, nullptr);
  } else {
    result = cuda.launch_kernel(handle, shape.blocks_x, shape.blocks_y, 1, shape.threads_x, shape.threads_y, 1,
                                shape.dynamic_shared_bytes, current_stream(device), arguments, nullptr);
  }
  driver_check(result, family.entries[entry].name, family.name, device);
}

bool has_clusters(KernelFamily& family, int device) { return ready(family, device).early; }

int resident_clusters(KernelFamily& family, int device, int entry, const LaunchShape& shape) {
  // The answer and what was asked fit in one number, so that the driver is asked once: 20 bits of the answer, then the
  // device, the entry, warps, blocks of a cluster less one, and shared memory in units of 16 bytes.
  const uint64_t asked = static_cast<uint64_t>(device) << 32 | static_cast<uint64_t>(entry) << 24 |
                         static_cast<uint64_t>(shape.threads_x / 32) << 18 |
                         static_cast<uint64_t>(shape.cluster - 1) << 14 | shape.dynamic_shared_bytes / 16;
  for (const std::atomic<uint64_t>& known : family.resident) {
    const uint64_t both = known.load(std::memory_order_relaxed);
    if (both >> 20 == asked) return static_cast<int>(both & 0xfffff);
  }
  const Loaded& loaded = ready(family, device);
  if (shape.cluster > kMostBlocks && !loaded.wider) return 0;
  const ContextGuard guard(driver(), loaded.context, family.name, device);
  LaunchAttribute attributes[2];
  LaunchConfig config = config_of(shape, nullptr, attributes);
  if (shape.cluster == 1) {  // the driver asks for the attribute even so
    attributes[config.attribute_count++] = {kClusterDimension, 0, {1, 1, 1}};
  }
  int count = 0;
  const CuResult result = driver().occupancy_max_active_clusters(&count, loaded.functions[entry].function, &config);
  if (shape.cluster > kMostBlocks && result != kCudaSuccess) count = 0;  // a part of a GPU may be too small
  if (shape.cluster <= kMostBlocks) driver_check(result, "cuOccupancyMaxActiveClusters", family.name, device);
  std::atomic<uint64_t>* place = &family.resident[asked % 8];
  for (std::atomic<uint64_t>& known : family.resident) {
    if (known.load(std::memory_order_relaxed) == 0) place = &known;
  }
  place->store(asked << 20 | static_cast<uint64_t>(count), std::memory_order_relaxed);
  return count;
}

void prepare(KernelFamily& family, int device) { ready(family, device); }

void set_image(KernelFamily& family, int device, const void* data, size_t bytes, const char* target, int major,
               int minor) {
  DeviceSlot& slot = slot_of(family, device);
  parse_target(target, family.name);
  PRECAST_CHECK(data != nullptr && bytes > 0, "precast: %s: the device code for cuda:%d is empty", family.name, device);
  const Lock lock(mutex);
  Image* image = image_of(family, data, bytes, target);
  PRECAST_CHECK(slot.loaded.load(std::memory_order_relaxed) == nullptr || image == slot.image,
                "precast: %s is already running on cuda:%d with other device code, which cannot be replaced",
                family.name, device);
  slot.image = image;
  slot.believed_major = major;
  slot.believed_minor = minor;
  replace_refusal(slot, nullptr);
}

void refuse(KernelFamily& family, int device, const char* message) {
  DeviceSlot& slot = slot_of(family, device);
  const Lock lock(mutex);
  PRECAST_CHECK(slot.loaded.load(std::memory_order_relaxed) == nullptr, "precast: %s is already running on cuda:%d",
                family.name, device);
  replace_refusal(slot, copy_bytes(message, strlen(message)));
}

int kernel_attribute(KernelFamily& family, int device, const char* entry, int attribute) {
  const Loaded& loaded = ready(family, device);
  const ContextGuard guard(driver(), loaded.context, family.name, device);
  for (int i = 0; i < family.entry_count; ++i) {
    if (strcmp(family.entries[i].name, entry) != 0) continue;
    int value = 0;
    driver_check(driver().func_get_attribute(&value, attribute, loaded.functions[i].function), "cuFuncGetAttribute",
                 family.name, device);
    return value;
  }
  fail("precast: kernel family '%s' has no entry point '%s'", family.name, entry);
}

namespace {

int device_number(int device, int attribute, std::atomic<int> (&known)[kMaxDevices]) {
  PRECAST_CHECK(device >= 0 && device < kMaxDevices, "precast: there is no cuda:%d", device);
  int number = known[device].load(std::memory_order_relaxed);
  if (number == 0) {
    const Driver& cuda = driver();
    const CuDevice handle = device_handle(cuda, "precast", device);
    driver_check(cuda.device_get_attribute(&number, attribute, handle), "cuDeviceGetAttribute", "precast", device);
    known[device].store(number, std::memory_order_relaxed);
  }
  return number;
}

}  // namespace

StreamState stream_state(int device) {
  const CuHandle stream = current_stream(device);
  int status = kCaptureNone;
  driver_check(driver().stream_is_capturing(stream, &status), "cuStreamIsCapturing", "precast", device);
  return {stream, status != kCaptureNone};
}

int multiprocessors(int device) {
  static std::atomic<int> known[kMaxDevices];
  return device_number(device, kMultiprocessorCount, known);
}

int block_shared_bytes(int device) {
  static std::atomic<int> known[kMaxDevices];
  return device_number(device, kMaxSharedMemoryPerBlockOptin, known);
}

}  // namespace precast
