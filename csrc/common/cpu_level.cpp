#include "cpu_level.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <exception>

#include "checks.h"

#define PRECAST_TEXT(name) PRECAST_TEXT_OF(name)
#define PRECAST_TEXT_OF(name) #name

namespace precast {
namespace {

constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};

// __builtin_cpu_supports asks the operating system too: a processor with AVX-512 under a kernel that does not save its
// registers counts as one without.
CpuLevel best_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;  // g++ 10 cannot ask by name
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return avx512 ? CpuLevel::kAvx512 : avx2 ? CpuLevel::kAvx2 : CpuLevel::kBaseline;
#else
  return CpuLevel::kBaseline;
#endif
}

constexpr int kUndecided = -1;
std::atomic<int> chosen{kUndecided};

}  // namespace

CpuLevel cpu_level() {
  int level = chosen.load(std::memory_order_relaxed);
  if (level == kUndecided) {  // two threads may both decide: they decide the same
    level = static_cast<int>(best_level());
    chosen.store(level, std::memory_order_relaxed);
  }
  return static_cast<CpuLevel>(level);
}

void set_cpu_level(const char* name) {
  const int best = static_cast<int>(best_level());
  if (name[0] == '\0') {
    chosen.store(best, std::memory_order_relaxed);
    return;
  }
  for (int level = 0; level <= static_cast<int>(CpuLevel::kAvx512); ++level) {
    if (strcmp(kNames[level], name) != 0) continue;
#if defined(PRECAST_ONLY_CPU_LEVEL)
    PRECAST_CHECK(strcmp(name, PRECAST_TEXT(PRECAST_ONLY_CPU_LEVEL)) == 0,
                  "CPU level '%s' was asked for; this library was built at run time and holds '%s' alone", name,
                  PRECAST_TEXT(PRECAST_ONLY_CPU_LEVEL));
#endif
    PRECAST_CHECK(level <= best, "CPU level '%s' was asked for; this machine has '%s'", name, kNames[best]);
    chosen.store(level, std::memory_order_relaxed);
    return;
  }
  fail("no CPU level '%s'; there are: baseline, avx2, avx512", name);
}

}  // namespace precast

// For tests: every kernel called after this uses that level, in all threads.
extern "C" __attribute__((visibility("default"))) int precast_set_cpu_level(const char* name, char* err, size_t cap) {
  try {
    precast::set_cpu_level(name);
    return 0;
  } catch (const std::exception& error) {
    if (err != nullptr && cap > 0) snprintf(err, cap, "%s", error.what());
    return 1;
  }
}
