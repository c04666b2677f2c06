// Which of the CPU levels compiled into this library is used: the best one that the processor and the operating system
// have, unless it was chosen otherwise. Nothing of the standard library here: cpu.cpp includes this at every level.
#pragma once

// Least first. On ARM a vector length is a level of its own: one register is compiled to be that long (simd_sve.h).
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

// A level by its name, "sve" for the one of these that this machine has, "" for the best. Fails for a level that this
// machine does not have.
void set_cpu_level(const char* name);

// The level's own version of a function that cpu.cpp defines in every level's namespace:
//
//   update = PRECAST_AT_CPU_LEVEL(cpu_adam, update);
//
// A library built for one machine holds one level alone, PRECAST_ONLY_CPU_LEVEL.
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
