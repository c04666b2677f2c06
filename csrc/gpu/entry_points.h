// The host side of a family's list of entry points. `entries.h` in the folder of the family has the list: a macro that
// the device code expands with KERNEL (device.cuh), and the host code with PRECAST_ENTRIES. Its columns:
//
//   name       of the `extern "C"` function
//   Args       the structure that it takes by value (args.h)
//   threads    the most threads of a block
//   resident   how many threads a multiprocessor should hold
//   registers  the most registers of a thread, so that as many threads are resident as the bandwidth needs.
//              BY_MAJOR(80, 10, 128) is 80, but 128 from compute capability 10 on. Only
//              tests/unit/csrc/test_device_compiles.py reads this column; it refuses an image that takes more
//   shared     the most bytes of dynamic shared memory at a launch (Entry)
//   function   the __device__ function that does the work
#pragma once

#include "../host/torch.h"
#include "dtypes.h"
#include "launch.h"

namespace precast {

constexpr int kNoEntry = -1;

#define PRECAST_ONE(...) +1
constexpr int kDTypes = 0 PRECAST_DTYPES(PRECAST_ONE, );
#undef PRECAST_ONE

// The entry points of one kernel for each dtype. kNoEntry: the kernel does not support that dtype.
class ByDType {
 public:
  constexpr ByDType(int any) : entry_{} {
    for (int& one : entry_) one = any;
  }
  template <class... Others>
  constexpr ByDType(int first, Others... others) : entry_{first, others...} {
    static_assert(1 + sizeof...(others) == kDTypes, "one entry point for each dtype");
  }

  constexpr int operator[](DType dtype) const { return entry_[static_cast<int>(dtype)]; }
  constexpr bool operator==(const ByDType& other) const {
    for (int i = 0; i < kDTypes; ++i) {
      if (entry_[i] != other.entry_[i]) return false;
    }
    return true;
  }
  constexpr bool operator!=(const ByDType& other) const { return !(*this == other); }

 private:
  int entry_[kDTypes];
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
#define PRECAST_BY_DTYPE(before, after) (::precast::ByDType{PRECAST_DTYPES(PRECAST_ENTRY_OF, before, after)})
#define PRECAST_ENTRY_OF(f, T, NARROW, before, after) entry::before##_##f##after,
