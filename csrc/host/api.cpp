// The C interface of a host library, which the loader calls through ctypes. Functions return 0 for success, else the
// message is in `err`. Only this interface is exported, and nothing runs when the library is opened.
#include <string.h>

#include "../gpu/asked_rows.h"
#include "../gpu/launch.h"
#include "checks.h"
#include "family.h"
#include "lock.h"

#ifndef PRECAST_BUILD_ID
#define PRECAST_BUILD_ID "unstamped"
#endif

PRECAST_EXPORT const char* precast_families();

// The bounds of the section that PRECAST_FAMILY fills; the linker provides them.
extern "C" __attribute__((visibility("hidden"))) const precast::Family* const __start_precast_families[];
extern "C" __attribute__((visibility("hidden"))) const precast::Family* const __stop_precast_families[];

namespace precast {
namespace {

int64_t family_count() { return __stop_precast_families - __start_precast_families; }

int64_t index_of(const char* name) {
  for (int64_t i = 0; i < family_count(); ++i) {
    if (strcmp(__start_precast_families[i]->name, name) == 0) return i;
  }
  fail("this library has no kernel family '%s'; it has: %s", name, precast_families());
}

KernelFamily& kernels_of(const char* name) {
  const Family& family = *__start_precast_families[index_of(name)];
  PRECAST_CHECK(family.kernels != nullptr, "kernel family '%s' has no device code", name);
  return *family.kernels;
}

void register_family(const char* name, const char* key) {
  // One bit per family and key. Registration happens under the mutex, so two threads cannot both register.
  static Mutex mutex;
  static uint64_t done[2] = {0, 0};
  const int64_t index = index_of(name);
  const Lock lock(mutex);
  uint64_t& bits = done[strcmp(key, "CUDA") == 0];
  if ((bits >> index & 1) != 0) return;
  const int64_t count = register_implementations(*__start_precast_families[index], key);
  PRECAST_CHECK(count > 0, "kernel family '%s' has no implementation for '%s'", name, key);
  bits |= uint64_t{1} << index;
}

// A list of words separated by spaces. It is never truncated: a buffer that is too small is an error.
class Words {
 public:
  Words(char* out, size_t cap) : out_(out), cap_(cap) {
    PRECAST_CHECK(cap > 0, "a buffer of 0 bytes was given for a list of names");
    out_[0] = '\0';
  }
  void add(const char* word) {
    const size_t length = strlen(word);
    PRECAST_CHECK(used_ + length + 2 <= cap_, "a buffer of %zu bytes is too small for the list of names", cap_);
    if (used_ > 0) out_[used_++] = ' ';
    memcpy(out_ + used_, word, length + 1);
    used_ += length;
  }

 private:
  char* out_;
  size_t cap_;
  size_t used_ = 0;
};

}  // namespace
}  // namespace precast

using precast::guarded;

// "<package version> <source digest>"
PRECAST_EXPORT const char* precast_build_id() { return PRECAST_BUILD_ID; }

PRECAST_EXPORT const char* precast_families() {
  static char names[1024] = "";
  static const bool filled = [] {
    precast::Words words(names, sizeof(names));
    for (int64_t i = 0; i < precast::family_count(); ++i) words.add(__start_precast_families[i]->name);
    return true;
  }();
  static_cast<void>(filled);
  return names;
}

// The family's device entry points, separated by spaces; empty for a family without device code.
PRECAST_EXPORT int precast_entries(const char* family, char* out, size_t cap) {
  return guarded(out, cap, [&] {
    precast::Words words(out, cap);
    const precast::KernelFamily* kernels = __start_precast_families[precast::index_of(family)]->kernels;
    for (int i = 0; kernels != nullptr && i < kernels->entry_count; ++i) words.add(kernels->entries[i].name);
  });
}

// Registers the family's kernels for the dispatch key "CPU" or "CUDA". Repeated calls do nothing.
PRECAST_EXPORT int precast_register(const char* family, const char* key, char* err, size_t cap) {
  return guarded(err, cap, [&] { precast::register_family(family, key); });
}

// Copies a cubin or PTX for one device. `target` is its compile target ("sm_90"); cc_* is the compute capability that
// the loader expects. Both are checked against the device before the image is loaded.
PRECAST_EXPORT int precast_set_image(const char* family, int device, const void* data, size_t bytes, const char* target,
                                     int cc_major, int cc_minor, char* err, size_t cap) {
  return guarded(err, cap, [&] {
    precast::set_image(precast::kernels_of(family), device, data, bytes, target, cc_major, cc_minor);
  });
}

// Makes later launches on that device raise this message.
PRECAST_EXPORT int precast_refuse(const char* family, int device, const char* message) {
  return guarded(nullptr, 0, [&] { precast::refuse(precast::kernels_of(family), device, message); });
}

// Loads the family on that device now instead of at its first launch.
PRECAST_EXPORT int precast_prepare(const char* family, int device, char* err, size_t cap) {
  return guarded(err, cap, [&] { precast::prepare(precast::kernels_of(family), device); });
}

// What `python -m tools tune` asks of later launches of row kernels: threads per block, blocks per row, and whether a
// launch starts early. Zeros, and -1, leave the choice to the policy.
PRECAST_EXPORT void precast_ask_rows(int threads, int cluster, int early) {
  precast::asked_rows = {static_cast<uint32_t>(threads), static_cast<uint32_t>(cluster), early};
}

// cuFuncGetAttribute of one entry point, for tests and reports.
PRECAST_EXPORT int precast_kernel_attribute(const char* family, int device, const char* entry, int attribute,
                                            int* value, char* err, size_t cap) {
  return guarded(err, cap,
                 [&] { *value = precast::kernel_attribute(precast::kernels_of(family), device, entry, attribute); });
}
