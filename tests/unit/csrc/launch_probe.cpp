// A family with two entry points, launched from a test. Linked with the launch protocol and the C interface as shipped.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <exception>
#include <stdexcept>

#include "gpu/launch.h"
#include "host/checks.h"
#include "host/family.h"

namespace precast {

constexpr Entry kEntries[] = {{"probe_v4"}, {"probe_any", 128 * 1024}};
KernelFamily kernels = {"probe", kEntries, 2};
static const Family family = {"probe", nullptr, 0, &kernels};
__attribute__((used, section("precast_families"))) static const Family* const pointer = &family;
static const Family without = {"no_device_code", nullptr, 0, nullptr};
__attribute__((used, section("precast_families"))) static const Family* const pointer_without = &without;

void fail(const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  throw std::runtime_error(text);
}

// Only the family without device code has implementations. How often they were registered, for the CPU and for CUDA.
static int registrations[2] = {0, 0};
int64_t register_implementations(const Family& family, const char* key, const char*) {
  return &family == &without ? ++registrations[strcmp(key, "CUDA") == 0] : 0;
}

}  // namespace precast

extern "C" __attribute__((visibility("default"))) int probe_registrations(int cuda) {
  return precast::registrations[cuda];
}

// What resident_clusters says of clusters of so many blocks, or -1.
extern "C" __attribute__((visibility("default"))) int probe_resident(int device, int cluster) {
  try {
    return precast::resident_clusters(precast::kernels, device, 0,
                                      {8, 1, 32, 1, 16, false, static_cast<uint32_t>(cluster)});
  } catch (const std::exception&) {
    return -1;
  }
}

// `early`: 0, or 1 for a launch that starts early, or more for such a cluster; less than -1 for one that does not.
extern "C" __attribute__((visibility("default"))) int probe_launch(int device, int entry, int early, char* err,
                                                                   size_t cap) {
  try {
    precast::launch(precast::kernels, device, entry,
                    {4, 2, 32, 4, 16, early > 0,
                     static_cast<uint32_t>(early > 1    ? early
                                           : early < -1 ? -early
                                                        : 1)},
                    nullptr);
    return 0;
  } catch (const std::exception& error) {
    snprintf(err, cap, "%s", error.what());
    return 1;
  }
}
