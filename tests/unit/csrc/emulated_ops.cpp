// The ops of a family exactly as they run on a GPU (checks, choice of kernel, arguments), for CPU tensors: the
// families' CUDA implementations are registered for CPU in a namespace of the test's own, and launch() runs the
// emulator.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "cpu/cpu_level.h"
#include "emulator.h"
#include "gpu/asked_rows.h"
#include "gpu/driver.h"
#include "gpu/launch.h"
#include "host/torch.h"
#include NO_CPU_CODE

extern const EmulatedKernel emulated_kernels[];

extern "C" const precast::Family* const __start_precast_families[];
extern "C" const precast::Family* const __stop_precast_families[];

namespace precast {

static char launched[1 << 12];

void launch(KernelFamily& family, int, int entry, const LaunchShape& shape, void** arguments) {
  PRECAST_CHECK(entry >= 0 && entry < family.entry_count, "there is no entry %d", entry);
  const char* name = family.entries[entry].name;
  for (const EmulatedKernel* kernel = emulated_kernels; kernel->name != nullptr; ++kernel) {
    if (strcmp(kernel->name, name) != 0) continue;
    const size_t used = strlen(launched);
    char blocks[32];  // "8", or "8x2"
    snprintf(blocks, sizeof(blocks), shape.blocks_y > 1 ? "%ux%u" : "%u", shape.blocks_x, shape.blocks_y);
    snprintf(launched + used, sizeof(launched) - used, "%s<%s,%ux%u> ", name, blocks, shape.threads_x, shape.threads_y);
    emulator::launch(kernel->function, arguments[0], shape.blocks_x, shape.blocks_y, shape.threads_x, shape.threads_y);
    return;
  }
  fail("device code has no entry point %s", name);
}

void* find_loaded(const char* library, const char* name) {
  return dlsym(dlopen(library, RTLD_NOW | RTLD_NOLOAD), name);
}
StreamState stream_state(int) { return {}; }
void prepare(KernelFamily&, int) {}
bool has_clusters(KernelFamily&, int) { return asked_rows.cluster != 0; }
int resident_clusters(KernelFamily&, int, int, const LaunchShape&) { return 2; }
int multiprocessors(int) { return 2; }
int block_shared_bytes(int) { return 227 * 1024; }

// The CPU's own kernels are not under test here, and never called: NO_CPU_CODE defines NO_CPU_LEVEL, which stands in
// for those of one level.
PRECAST_EACH_CPU_LEVEL(NO_CPU_LEVEL)

}  // namespace precast

extern "C" int precast_attach(const precast::TorchTable* table, char* err, size_t cap);

extern "C" __attribute__((visibility("default"))) void emulated_register(const char* space) {
  if (precast_attach(nullptr, nullptr, 0) != 0) abort();
  precast::TorchLibraryHandle library = nullptr;
  precast::aoti_torch_library_init_impl(space, "CPU", __FILE__, __LINE__, &library);
  for (auto family = __start_precast_families; family != __stop_precast_families; ++family) {
    for (int64_t i = 0; i < (*family)->implementation_count; ++i) {
      const precast::Implementation& one = (*family)->implementations[i];
      if (strcmp(one.key, "CUDA") == 0)
        precast::torch_library_impl(library, one.op, one.function, precast::kTorchAbiVersion);
    }
  }
}

// Asks for clusters of one block, the only ones that the emulator has, with so many threads. Zero: no clusters.
extern "C" __attribute__((visibility("default"))) void emulated_clusters(int threads) {
  precast::asked_rows = {static_cast<uint32_t>(threads), threads != 0 ? 1u : 0u, -1};
}

// "name<blocks,threads x rows> ..." of every launch since the last call.
extern "C" __attribute__((visibility("default"))) const char* emulated_launches() {
  static char taken[sizeof(precast::launched)];
  memcpy(taken, precast::launched, sizeof(taken));
  precast::launched[0] = '\0';
  return taken;
}
