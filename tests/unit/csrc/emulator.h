// Runs device code on the CPU, thread by thread, to hold its indices and barriers against the truth without a GPU.
//
// Every thread of a block is a fiber. A warp runs on alone as far as it can, up to a barrier of the block, so that a
// missing barrier shows as a wrong number; the order of the warps changes from barrier to barrier. Blocks follow one
// another and find the shared memory as the one before left it.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <memory>
#include <stdexcept>
#include <vector>

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
struct alignas(16) int4 {
  int x, y, z, w;
};

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};

inline Index3 threadIdx, blockIdx, blockDim, gridDim;

// An entry point of device code under test.
struct EmulatedKernel {
  const char* name;
  void (*function)(const void*);
};

namespace emulator {

constexpr size_t kStackBytes = 64 * 1024;

enum class State { kReady, kAtShuffle, kAtBarrier, kDone };

// Its context is where it begins. From then on it goes on by a jump, which unlike swapcontext asks the kernel nothing,
// and runs one thread of a block after another.
struct Fiber {
  ucontext_t context;
  jmp_buf left;
  bool begun = false;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  Index3 index;
  State state = State::kReady;
  float offered = 0;
};

inline jmp_buf scheduler;
inline std::vector<Fiber> fibers;
inline size_t running;
inline void (*kernel)(const void*);
inline const void* kernel_arguments;

inline void yield(State state) {
  fibers[running].state = state;
  if (_setjmp(fibers[running].left) == 0) _longjmp(scheduler, 1);
}

inline void body() {
  for (;;) {
    kernel(kernel_arguments);
    yield(State::kDone);
  }
}

inline void begin(Fiber& fiber) {
  fiber.begun = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, body, 0);
  setcontext(&fiber.context);
}

inline void resume(size_t fiber) {
  running = fiber;
  threadIdx = fibers[fiber].index;
  fibers[fiber].state = State::kReady;
  if (_setjmp(scheduler) != 0) return;
  if (fibers[fiber].begun) _longjmp(fibers[fiber].left, 1);
  begin(fibers[fiber]);
}

// Runs one warp until all of its threads are done or wait for the block.
inline void run_warp(size_t first) {
  for (;;) {
    size_t shuffling = 0, done = 0;
    for (size_t i = first; i < first + 32; ++i) {
      if (fibers[i].state == State::kReady || fibers[i].state == State::kAtShuffle) resume(i);
    }
    for (size_t i = first; i < first + 32; ++i) {
      shuffling += fibers[i].state == State::kAtShuffle;
      done += fibers[i].state == State::kDone;
    }
    if (shuffling == 0) return;
    if (shuffling + done != 32) throw std::runtime_error("a shuffle of the full warp was reached by a part of it");
  }
}

inline void run_block(unsigned threads_x, unsigned threads_y, unsigned seed) {
  const size_t count = static_cast<size_t>(threads_x) * threads_y, warps = count / 32;
  if (fibers.size() < count) fibers = std::vector<Fiber>(count);
  for (size_t i = 0; i < count; ++i) {
    Fiber& fiber = fibers[i];
    fiber.index = {static_cast<unsigned>(i % threads_x), static_cast<unsigned>(i / threads_x), 0};
    fiber.state = State::kReady;
  }
  for (;;) {
    seed = seed * 1664525u + 1013904223u;
    for (size_t i = 0; i < warps; ++i) run_warp((i + seed / 65536) % warps * 32);
    size_t waiting = 0;
    for (size_t i = 0; i < count; ++i) waiting += fibers[i].state == State::kAtBarrier;
    if (waiting == 0) return;
    if (waiting != count) throw std::runtime_error("a barrier was reached by a part of the block");
    for (size_t i = 0; i < count; ++i) fibers[i].state = State::kReady;
  }
}

inline void launch(void (*function)(const void*), const void* arguments, unsigned blocks_x, unsigned blocks_y,
                   unsigned threads_x, unsigned threads_y) {
  kernel = function;
  kernel_arguments = arguments;
  gridDim = {blocks_x, blocks_y, 1};
  blockDim = {threads_x, threads_y, 1};
  try {
    for (unsigned block = 0; block < blocks_x * blocks_y; ++block) {
      blockIdx = {block % blocks_x, block / blocks_x, 0};
      run_block(threads_x, threads_y, block);
    }
  } catch (const std::runtime_error&) {
    fibers.clear();  // some wait in the middle of this kernel
    throw;
  }
}

}  // namespace emulator

inline void __syncthreads() { emulator::yield(emulator::State::kAtBarrier); }

inline float __shfl_xor_sync(unsigned, float value, int distance) {
  const size_t self = emulator::running;
  emulator::fibers[self].offered = value;
  emulator::yield(emulator::State::kAtShuffle);  // all have offered
  const float taken = emulator::fibers[self ^ static_cast<size_t>(distance)].offered;
  emulator::yield(emulator::State::kAtShuffle);  // all have taken
  return taken;
}

// Addresses in shared memory count from the start of the dynamic part.
inline size_t __cvta_generic_to_shared(const void*) { return 0; }

inline float __shfl_sync(unsigned, float value, int lane) {
  const size_t self = emulator::running;
  emulator::fibers[self].offered = value;
  emulator::yield(emulator::State::kAtShuffle);
  const float taken = emulator::fibers[self / 32 * 32 + static_cast<size_t>(lane)].offered;
  emulator::yield(emulator::State::kAtShuffle);
  return taken;
}

inline unsigned __shfl_sync(unsigned mask, unsigned value, int lane) {
  return static_cast<unsigned>(__shfl_sync(mask, static_cast<float>(value), lane));  // of counts that a float holds
}

// A bit for each lane of the warp whose predicate holds.
inline unsigned __ballot_sync(unsigned, bool predicate) {
  const size_t self = emulator::running, first = self / 32 * 32;
  emulator::fibers[self].offered = predicate ? 1.0f : 0.0f;
  emulator::yield(emulator::State::kAtShuffle);
  unsigned bits = 0;
  for (size_t lane = 0; lane < 32; ++lane) bits |= (emulator::fibers[first + lane].offered != 0 ? 1u : 0u) << lane;
  emulator::yield(emulator::State::kAtShuffle);
  return bits;
}

// The lanes of the warp that have the same number.
inline unsigned __match_any_sync(unsigned, unsigned value) {
  const size_t self = emulator::running, first = self / 32 * 32;
  memcpy(&emulator::fibers[self].offered, &value, 4);
  emulator::yield(emulator::State::kAtShuffle);
  unsigned bits = 0;
  for (size_t lane = 0; lane < 32; ++lane) {
    bits |= (memcmp(&emulator::fibers[first + lane].offered, &value, 4) == 0 ? 1u : 0u) << lane;
  }
  emulator::yield(emulator::State::kAtShuffle);
  return bits;
}

// The number of the lane `distance` below; a lane without one keeps its own.
inline unsigned __shfl_up_sync(unsigned, unsigned value, unsigned distance) {
  const size_t self = emulator::running;
  memcpy(&emulator::fibers[self].offered, &value, 4);
  emulator::yield(emulator::State::kAtShuffle);
  unsigned taken = value;
  if (self % 32 >= distance) memcpy(&taken, &emulator::fibers[self - distance].offered, 4);
  emulator::yield(emulator::State::kAtShuffle);
  return taken;
}

// The value is this thread's own beyond the warp.
inline unsigned __shfl_down_sync(unsigned, unsigned value, unsigned distance) {
  const size_t self = emulator::running;
  memcpy(&emulator::fibers[self].offered, &value, 4);
  emulator::yield(emulator::State::kAtShuffle);
  unsigned taken = value;
  if (self % 32 + distance < 32) memcpy(&taken, &emulator::fibers[self + distance].offered, 4);
  emulator::yield(emulator::State::kAtShuffle);
  return taken;
}

inline int atomicAdd(int* to, int value) { return (*to += value) - value; }  // fibers change places at barriers only
inline void __syncwarp() { emulator::yield(emulator::State::kAtShuffle); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }

inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline int __double2hiint(double value) {
  long long bits;
  memcpy(&bits, &value, 8);
  return static_cast<int>(bits >> 32);
}
inline int __double2loint(double value) {
  long long bits;
  memcpy(&bits, &value, 8);
  return static_cast<int>(bits);
}
inline double __hiloint2double(int high, int low) {
  const long long bits = static_cast<long long>(high) << 32 | static_cast<unsigned>(low);
  double value;
  memcpy(&value, &bits, 8);
  return value;
}
inline int __shfl_xor_sync(unsigned mask, int value, int distance) {
  float bits;
  memcpy(&bits, &value, 4);
  bits = __shfl_xor_sync(mask, bits, distance);
  memcpy(&value, &bits, 4);
  return value;
}
// Whether the predicate holds for all threads of the block.
inline int __syncthreads_and(int predicate) {
  static bool all;
  all = true;
  __syncthreads();
  if (predicate == 0) all = false;
  __syncthreads();
  const bool result = all;
  __syncthreads();
  return result ? 1 : 0;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> shift);
}
// Products and sums that no compiler may fuse; volatile is as good as the instructions.
inline float __fmul_rn(float a, float b) {
  volatile float product = a * b;
  return product;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }

// What the test puts in place of inline PTX.
template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
