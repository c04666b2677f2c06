// The launch protocol: every kernel of every family is started by launch(), on the right device, context and stream.
//
// A family's device code is data that the loader hands over, one image (cubin or PTX) for each device. It is loaded at
// the first launch on a device, in that device's primary context, all entry points at once; from then on a launch takes
// no lock. Nothing is ever unloaded.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

namespace precast {

constexpr int kMaxDevices = 64;

// What a kernel may declare of shared memory by itself, beside the dynamic part.
constexpr int kStaticSharedBytes = 2 * 1024;

// One `extern "C" __global__` function of a family's device.cu.
struct Entry {
  const char* name;
  int dynamic_shared_bytes = 0;  // the most it is launched with, or what the device has; above 48 KB it has to be told
};

struct Image;   // bytes of a cubin or PTX, and what the driver made of them
struct Loaded;  // the entry points in one device's context

struct DeviceSlot {
  std::atomic<const Loaded*> loaded{nullptr};  // set once, last: a launch that sees it needs nothing else
  Image* image = nullptr;
  char* refusal = nullptr;
  int believed_major = 0;  // what the loader took the device for
  int believed_minor = 0;
};

struct KernelFamily {
  const char* name;
  const Entry* entries;
  int entry_count;
  DeviceSlot devices[kMaxDevices] = {};
};

struct LaunchShape {
  uint32_t blocks_x;
  uint32_t blocks_y = 1;
  uint32_t threads_x;
  uint32_t threads_y = 1;
  uint32_t dynamic_shared_bytes = 0;
  bool early = false;  // its blocks may start while the launch before it still runs: the kernel waits by itself
};

// Starts `entry` (an index into family.entries) on torch's current stream of `device`. `arguments` holds the address of
// each parameter. Raises with the family, the device and the driver's words; a launch of nothing is the caller's bug.
void launch(KernelFamily& family, int device, int entry, const LaunchShape& shape, void** arguments);

// What launch() does before its first launch: "ready", so that a captured launch has nothing left to load.
void prepare(KernelFamily& family, int device);

void set_image(KernelFamily& family, int device, const void* data, size_t bytes, const char* target, int major,
               int minor);
void refuse(KernelFamily& family, int device, const char* message);

// cuFuncGetAttribute of an entry point by name; prepares the family first.
int kernel_attribute(KernelFamily& family, int device, const char* entry, int attribute);

// torch's current stream of a device, and whether a graph is captured on it.
struct StreamState {
  void* handle = nullptr;
  bool capturing = false;
};
StreamState stream_state(int device);

// Of a device, asked once: its multiprocessors, and the most bytes of shared memory that a block can have.
int multiprocessors(int device);
int block_shared_bytes(int device);

}  // namespace precast
