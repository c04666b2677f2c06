// Chooses among the CPU levels compiled into this library. The default is the best one that the processor and the
// operating system support. cpu.cpp includes this file at every level, so it must not include the standard library.
#pragma once

// A level is a name in PRECAST_CPU_LEVELS, what the processor must have for it, the number of floats in a register, and
// an entry of CPU_LEVELS in pkg/precast/_builder/flags.py. Lowest first. On ARM each vector length is a level of its
// own, compiled for registers of that length (simd_sve.h).
#if defined(__x86_64__)
#define PRECAST_CPU_LEVELS(f, a, b) f(baseline, a, b) f(avx2, a, b) f(avx512, a, b)
// __builtin_cpu_supports asks the operating system too: a processor with AVX-512 under a kernel that does not save its
// registers counts as one without. Each level has what the lesser ones have.
#define PRECAST_HAS_baseline true
#define PRECAST_HAS_avx2 (has_f16c() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define PRECAST_HAS_avx512                                                                        \
  (PRECAST_HAS_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && \
   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
#define PRECAST_WIDTH_OF_baseline 4
#define PRECAST_WIDTH_OF_avx2 8
#define PRECAST_WIDTH_OF_avx512 16
#else
// A vector length is a level of its own: one register is compiled to be that long (simd_sve.h).
#define PRECAST_CPU_LEVELS(f, a, b) f(neon, a, b) f(sve128, a, b) f(sve256, a, b) f(sve512, a, b)
#define PRECAST_HAS_neon true
#define PRECAST_HAS_sve128 (sve_bits() == 128)
#define PRECAST_HAS_sve256 (sve_bits() == 256)
#define PRECAST_HAS_sve512 (sve_bits() == 512)
#define PRECAST_WIDTH_OF_neon 4
#define PRECAST_WIDTH_OF_sve128 4
#define PRECAST_WIDTH_OF_sve256 8
#define PRECAST_WIDTH_OF_sve512 16
#define PRECAST_SVE_BITS_OF_sve128 128
#define PRECAST_SVE_BITS_OF_sve256 256
#define PRECAST_SVE_BITS_OF_sve512 512
#endif

#define PRECAST_LEVEL_TO(level, f, unused) f(level)
#define PRECAST_EACH_CPU_LEVEL(f) PRECAST_CPU_LEVELS(PRECAST_LEVEL_TO, f, )

// Declares a function in the namespace of every level, where cpu.cpp defines it: PRECAST_CPU_FUNCTION(sum, (int from))
#define PRECAST_LEVEL_FUNCTION(level, name, parameters) \
  namespace level {                                     \
  void name parameters;                                 \
  }
#define PRECAST_CPU_FUNCTION(name, parameters) PRECAST_CPU_LEVELS(PRECAST_LEVEL_FUNCTION, name, parameters)

#if defined(PRECAST_CPU_LEVEL)  // of a unit that is compiled for one level
#define PRECAST_JOIN_(a, b) a##b
#define PRECAST_JOIN(a, b) PRECAST_JOIN_(a, b)
#define PRECAST_WIDTH PRECAST_JOIN(PRECAST_WIDTH_OF_, PRECAST_CPU_LEVEL)
#define PRECAST_SVE_BITS PRECAST_JOIN(PRECAST_SVE_BITS_OF_, PRECAST_CPU_LEVEL)  // 0 for a level that is none of SVE
#if PRECAST_WIDTH == 0
#error "precast: PRECAST_CPU_LEVEL is none of baseline avx2 avx512 on x86_64, of neon sve128 sve256 sve512 on aarch64"
#endif
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
#else
#define PRECAST_IF_LEVEL(level, family, function) PRECAST_IS_LEVEL(level) ? PRECAST_AT(family, level, function):
#define PRECAST_AT_CPU_LEVEL(family, function) (PRECAST_CPU_LEVELS(PRECAST_IF_LEVEL, family, function) nullptr)
#endif

}  // namespace precast
