// Which of the CPU levels compiled into this library is used: the best one that the processor and the operating system
// have, unless a test chose a lesser one.
#pragma once

namespace precast {

enum class CpuLevel : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

CpuLevel cpu_level();

// "baseline", "avx2", "avx512", or "" for the best. Fails for a level that this machine does not have.
void set_cpu_level(const char* name);

// The level's own version of a function that cpu.cpp defines in every level's namespace:
//
//   update = PRECAST_AT_CPU_LEVEL(cpu_adam, update);
//
// A library built for one machine holds one level alone, PRECAST_ONLY_CPU_LEVEL.
#if defined(PRECAST_ONLY_CPU_LEVEL)
#define PRECAST_AT_CPU_LEVEL(family, function) PRECAST_AT_ONLY(family, PRECAST_ONLY_CPU_LEVEL, function)
#define PRECAST_AT_ONLY(family, level, function) (&::precast::family::level::function)
#elif defined(__x86_64__)
#define PRECAST_AT_CPU_LEVEL(family, function)                                                   \
  (::precast::cpu_level() == ::precast::CpuLevel::kAvx512 ? &::precast::family::avx512::function \
   : ::precast::cpu_level() == ::precast::CpuLevel::kAvx2 ? &::precast::family::avx2::function   \
                                                          : &::precast::family::baseline::function)
#else
#define PRECAST_AT_CPU_LEVEL(family, function) (&::precast::family::baseline::function)
#endif

}  // namespace precast
