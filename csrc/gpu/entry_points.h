// The host side of a family's list of entry points. `entries.h` in the folder of the family has the list: a macro that
// the device code expands with KERNEL (device.cuh), and the host code with PRECAST_ENTRIES. Its columns:
//
//   name       of the `extern "C"` function
//   Args       the structure that it takes by value (args.h)
//   threads    the most threads of a block
//   resident   how many threads a multiprocessor should hold
//   registers  the most registers of a thread, so that as many threads are resident as the bandwidth needs.
//              BY_MAJOR(80, 10, 128) is 80, but 128 on compute capability 10. Only
//              tests/unit/csrc/test_device_compiles.py reads this column; it refuses an image that takes more
//   shared     the most bytes of dynamic shared memory at a launch (Entry)
//   function   the __device__ function that does the work
#pragma once

#include "../host/torch.h"
#include "launch.h"

namespace precast {

constexpr int kNoEntry = -1;

// The entry points of one kernel for float32, float16 and bfloat16. kNoEntry: the kernel does not support that dtype.
class ByDType {
 public:
  constexpr ByDType(int any) : entry_{any, any, any} {}
  constexpr ByDType(int f32, int f16, int bf16) : entry_{f32, f16, bf16} {}

  constexpr int operator[](DType dtype) const { return entry_[static_cast<int>(dtype)]; }
  constexpr bool operator==(const ByDType& other) const {
    return entry_[0] == other.entry_[0] && entry_[1] == other.entry_[1] && entry_[2] == other.entry_[2];
  }
  constexpr bool operator!=(const ByDType& other) const { return !(*this == other); }

 private:
  int entry_[3];
};

}  // namespace precast

#define PRECAST_ENTRY_NUMBER(name, ...) name,
#define PRECAST_ENTRY_ROW(name, Args, threads, resident, registers, shared, ...) {#name, shared},

// Declares the index of each entry point as entry::<name>, and the array kEntries of all of them.
#define PRECAST_ENTRIES(LIST)                       \
  namespace entry {                                 \
  enum : int { LIST(PRECAST_ENTRY_NUMBER) kCount }; \
  }                                                 \
  constexpr Entry kEntries[] = {LIST(PRECAST_ENTRY_ROW)};

// PRECAST_BY_DTYPE(rms_norm, _v4) is {rms_norm_f32_v4, rms_norm_f16_v4, rms_norm_bf16_v4}.
#define PRECAST_BY_DTYPE(before, after) \
  ::precast::ByDType(entry::before##_f32##after, entry::before##_f16##after, entry::before##_bf16##after)
