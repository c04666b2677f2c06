#include "cpu_level.h"

#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#else
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include <atomic>

#include "../host/checks.h"

#define PRECAST_TEXT(name) PRECAST_TEXT_OF(name)
#define PRECAST_TEXT_OF(name) #name

namespace precast {
namespace {

#define PRECAST_NAME(level) #level,
constexpr const char* kNames[] = {PRECAST_EACH_CPU_LEVEL(PRECAST_NAME)};
#undef PRECAST_NAME

#define PRECAST_LISTED(level) " " #level
constexpr char kList[] = PRECAST_EACH_CPU_LEVEL(PRECAST_LISTED);
#undef PRECAST_LISTED

#if defined(__x86_64__)
bool has_f16c() {  // g++ 10 has no name for it
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  __builtin_cpu_init();
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#else
// Linux gives a process one vector length, which its threads inherit. NEON serves the lengths without a level.
int sve_bits() {
  if ((getauxval(AT_HWCAP) & HWCAP_SVE) == 0) return 0;
  const int length = prctl(PR_SVE_GET_VL);
  return length < 0 ? 0 : (length & PR_SVE_VL_LEN_MASK) * 8;
}
#endif

#define PRECAST_RUNS(level) \
  case CpuLevel::level:     \
    return PRECAST_HAS_##level;
bool runs_here(CpuLevel level) {
  switch (level) { PRECAST_EACH_CPU_LEVEL(PRECAST_RUNS) }
  return false;
}
#undef PRECAST_RUNS

#define PRECAST_BEST(level) \
  if (runs_here(CpuLevel::level)) best = CpuLevel::level;
CpuLevel best_level() {
  CpuLevel best = {};
  PRECAST_EACH_CPU_LEVEL(PRECAST_BEST)
  return best;
}
#undef PRECAST_BEST

constexpr int kUndecided = -1;
std::atomic<int> chosen{kUndecided};

#if defined(PRECAST_ONLY_CPU_LEVEL)
void check_held(const char* name) {
  PRECAST_CHECK(strcmp(name, PRECAST_TEXT(PRECAST_ONLY_CPU_LEVEL)) == 0,
                "CPU level '%s' was asked for; this library was built at run time and holds '%s' alone", name,
                PRECAST_TEXT(PRECAST_ONLY_CPU_LEVEL));
}
#else
void check_held(const char*) {}
#endif

}  // namespace

CpuLevel cpu_level() {
  int level = chosen.load(std::memory_order_relaxed);
  if (level == kUndecided) {  // two threads may both decide; they decide the same
    level = static_cast<int>(best_level());
    chosen.store(level, std::memory_order_relaxed);
  }
  return static_cast<CpuLevel>(level);
}

void set_cpu_level(const char* name) {
  const int best = static_cast<int>(best_level());
  const bool any_sve = strcmp(name, "sve") == 0 && strncmp(kNames[best], "sve", 3) == 0;
  if (name[0] == '\0' || any_sve) {
    chosen.store(best, std::memory_order_relaxed);
    return;
  }
  for (int level = 0; level < static_cast<int>(sizeof kNames / sizeof *kNames); ++level) {
    if (strcmp(kNames[level], name) != 0) continue;
    check_held(name);
    PRECAST_CHECK(runs_here(static_cast<CpuLevel>(level)), "CPU level '%s' was asked for; this machine has '%s'", name,
                  kNames[best]);
    chosen.store(level, std::memory_order_relaxed);
    return;
  }
  fail("no CPU level '%s' here; there are:%s", name, kList);
}

}  // namespace precast

// Every kernel called after this uses that level, in all threads.
PRECAST_EXPORT int precast_set_cpu_level(const char* name, char* err, size_t cap) {
  return precast::guarded(err, cap, [&] { precast::set_cpu_level(name); });
}
