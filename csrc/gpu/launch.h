// The launch protocol. launch() starts every kernel of every family on the right device, context and stream.
//
// The loader passes a family's device code as data, one image (cubin or PTX) per device. The first launch on a device
// loads the image with all its entry points in that device's primary context. Later launches take no lock. Nothing is
// unloaded.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

namespace precast {

constexpr int kMaxDevices = 64;

// Static shared memory that a kernel may declare in addition to the dynamic part.
constexpr int kStaticSharedBytes = 2 * 1024;

// One `extern "C" __global__` function of a family's device.cu.
struct Entry {
  const char* name;
  int dynamic_shared_bytes = 0;  // the most at a launch, limited by the device; above 48 KB the driver must be told
};

struct Image;   // bytes of a cubin or PTX, and the driver's library
struct Loaded;  // the entry points in one device's context

struct DeviceSlot {
  std::atomic<const Loaded*> loaded{nullptr};  // set once and last: a launch that sees it needs nothing else
  Image* image = nullptr;
  char* refusal = nullptr;
  int believed_major = 0;  // what the loader expects of the device
  int believed_minor = 0;
};

struct KernelFamily {
  const char* name;
  const Entry* entries;
  int entry_count;
  DeviceSlot devices[kMaxDevices] = {};
  std::atomic<uint64_t> resident[8] = {};  // answers of resident_clusters
};

struct LaunchShape {
  uint32_t blocks_x;
  uint32_t blocks_y = 1;
  uint32_t threads_x;
  uint32_t threads_y = 1;
  uint32_t dynamic_shared_bytes = 0;
  bool early = false;    // blocks may start while the previous launch still runs; the kernel waits by itself, before
                         // it reads or writes anything
  uint32_t cluster = 1;  // consecutive blocks that share their memory; more than one only if has_clusters()
};

// Starts `entry` (an index into family.entries) on torch's current stream of `device`. `arguments` holds the address of
// each parameter. An error names the family, the device and the driver's message. Callers must not launch an empty
// grid.
void launch(KernelFamily& family, int device, int entry, const LaunchShape& shape, void** arguments);

// Whether launches on this device can have clusters of blocks: up to 8, or up to 16 where resident_clusters says so.
// Prepares the family first.
bool has_clusters(KernelFamily& family, int device);

// How many clusters of such a launch the device holds at a time; none if it cannot have such clusters.
int resident_clusters(KernelFamily& family, int device, int entry, const LaunchShape& shape);

// Does the setup of a first launch, so that a captured launch has nothing left to load.
void prepare(KernelFamily& family, int device);

void set_image(KernelFamily& family, int device, const void* data, size_t bytes, const char* target, int major,
               int minor);
void refuse(KernelFamily& family, int device, const char* message);

// Calls cuFuncGetAttribute for a named entry point. Prepares the family first.
int kernel_attribute(KernelFamily& family, int device, const char* entry, int attribute);

// Torch's current stream of a device, and whether a graph is being captured on it.
struct StreamState {
  void* handle = nullptr;
  bool capturing = false;
};
StreamState stream_state(int device);

// Device properties, queried once: the number of multiprocessors, and the maximum shared memory per block in bytes.
int multiprocessors(int device);
int block_shared_bytes(int device);

}  // namespace precast
