// Binds the library to the torch of this process: fills the table of functions from torch's own library, or copies it
// from an adapter's. All of it or nothing.
#include <stdio.h>
#include <string.h>

#include "checks.h"
#include "dynamic_linker.h"
#include "torch_c.h"

namespace precast {

TorchTable torch_table = {};

namespace {

constexpr const char* kTorchLibrary = "libtorch_cpu.so";

struct Function {
  const char* name;
  size_t offset;
  bool optional;
};
#define PRECAST_SINCE(major, minor, result, name, parameters) {#name, offsetof(TorchTable, name), false},
#define PRECAST_OPTIONAL_SINCE(major, minor, result, name, parameters) {#name, offsetof(TorchTable, name), true},
constexpr Function kFunctions[] = {
#include "torch_functions.h"
};
#undef PRECAST_SINCE
#undef PRECAST_OPTIONAL_SINCE

void* entry(const TorchTable& table, const Function& function) {
  void* address;
  memcpy(&address, reinterpret_cast<const char*>(&table) + function.offset, sizeof(address));
  return address;
}

TorchTable of_torch_itself() {
  // RTLD_NOLOAD: only the copy that this process uses already.
  void* const library = dlopen(kTorchLibrary, RTLD_LAZY | RTLD_NOLOAD);
  PRECAST_CHECK(library != nullptr, "this process has not loaded %s", kTorchLibrary);
  TorchTable table = {};
  table.size = sizeof(TorchTable);
  table.version = kTorchTableVersion;
  for (const Function& function : kFunctions) {
    void* const address = dlsym(library, function.name);
    memcpy(reinterpret_cast<char*>(&table) + function.offset, &address, sizeof(address));
  }
  return table;
}

void require_this_version(const TorchTable& table) {
  PRECAST_CHECK(table.size == sizeof(TorchTable) && table.version == kTorchTableVersion,
                "the adapter's table has version %lld and %lld bytes; needed version %lld and %lld bytes",
                printable(static_cast<int64_t>(table.version)), printable(static_cast<int64_t>(table.size)),
                printable(kTorchTableVersion), printable(sizeof(TorchTable)));
}

void require_whole(const TorchTable& table, const char* from) {
  char missing[1024] = "";
  size_t used = 0;
  for (const Function& function : kFunctions) {
    if (function.optional || entry(table, function) != nullptr || used + 64 > sizeof(missing)) continue;
    used += static_cast<size_t>(snprintf(missing + used, sizeof(missing) - used, " %s", function.name));
  }
  PRECAST_CHECK(used == 0, "%s lacks%s", from, missing);
}

}  // namespace
}  // namespace precast

// Binds this library to torch, once for all its families. `table` is an adapter's; null: torch has the functions
// itself. Kernels may run during a call that changes nothing, but not during any other.
PRECAST_EXPORT int precast_attach(const precast::TorchTable* table, char* err, size_t cap) {
  return precast::guarded(err, cap, [&] {
    if (table != nullptr) precast::require_this_version(*table);
    const precast::TorchTable found = table != nullptr ? *table : precast::of_torch_itself();
    precast::require_whole(found, table != nullptr ? "the adapter" : precast::kTorchLibrary);
    if (memcmp(&precast::torch_table, &found, sizeof(found)) != 0) precast::torch_table = found;
  });
}
