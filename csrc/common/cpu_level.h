// Chooses among the CPU levels compiled into this library. The default is the best one that the processor and the
// operating system support. cpu.cpp includes this file at every level, so it must not include the standard library.
#pragma once

// Lowest first. On ARM each vector length is a level of its own, compiled for registers of that length (simd_sve.h).
#if defined(__x86_64__)
#define PRECAST_EACH_CPU_LEVEL(f) f(baseline) f(avx2) f(avx512)
#else
#define PRECAST_EACH_CPU_LEVEL(f) f(neon) f(sve128) f(sve256) f(sve512)
#endif

namespace precast {

#define PRECAST_CPU_LEVEL_ITEM(level) level,
enum class CpuLevel : int { PRECAST_EACH_CPU_LEVEL(PRECAST_CPU_LEVEL_ITEM) };
#undef PRECAST_CPU_LEVEL_ITEM

CpuLevel cpu_level();

// Sets the level by name. "sve" selects the SVE level of this machine, and "" selects the best level. Fails for a level
// that this machine does not support.
void set_cpu_level(const char* name);

// Picks the current level's version of a function that cpu.cpp defines in every level's namespace:
//
//   update = PRECAST_AT_CPU_LEVEL(cpu_adam, update);
//
// A library built for one machine holds only one level, PRECAST_ONLY_CPU_LEVEL.
#define PRECAST_AT(family, level, function) (&::precast::family::level::function)
#define PRECAST_IS_LEVEL(level) (::precast::cpu_level() == ::precast::CpuLevel::level)
#if defined(PRECAST_ONLY_CPU_LEVEL)
#define PRECAST_AT_CPU_LEVEL(family, function) PRECAST_AT_ONLY(family, PRECAST_ONLY_CPU_LEVEL, function)
#define PRECAST_AT_ONLY(family, level, function) PRECAST_AT(family, level, function)
#elif defined(__x86_64__)
#define PRECAST_AT_CPU_LEVEL(family, function)                     \
  (PRECAST_IS_LEVEL(avx512) ? PRECAST_AT(family, avx512, function) \
   : PRECAST_IS_LEVEL(avx2) ? PRECAST_AT(family, avx2, function)   \
                            : PRECAST_AT(family, baseline, function))
#else
#define PRECAST_AT_CPU_LEVEL(family, function)                       \
  (PRECAST_IS_LEVEL(sve512)   ? PRECAST_AT(family, sve512, function) \
   : PRECAST_IS_LEVEL(sve256) ? PRECAST_AT(family, sve256, function) \
   : PRECAST_IS_LEVEL(sve128) ? PRECAST_AT(family, sve128, function) \
                              : PRECAST_AT(family, neon, function))
#endif

}  // namespace precast
