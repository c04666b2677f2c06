// The table of functions through which the library calls torch. Its entries come from torch itself, or from an adapter
// that is compiled with that torch's headers (attach.cpp). The library is compiled without any header of torch.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Opaque, and torch's own names: a type here and its counterpart in torch's headers are one.
struct AtenTensorOpaque;
struct StableListOpaque;
class TorchLibraryOpaque;

namespace precast {

// 0 for success. After a failure nothing was returned, and the error belongs to the calling thread.
using AOTITorchError = int32_t;
// A reference to a tensor. "Borrows" in torch_functions.h: the caller keeps its reference. "New": the caller gets one
// to delete.
using AtenTensorHandle = AtenTensorOpaque*;
using StableListHandle = StableListOpaque*;
using TorchLibraryHandle = TorchLibraryOpaque*;
// One value on the dispatcher's stack: a handle, a double, an int64_t or a bool in the low bytes. A `Tensor?` is null
// or points to a heap cell with a handle.
using StableIValue = uint64_t;

// Changes with torch_functions.h; pkg/precast/core/torch_abi.py has the same number.
constexpr uint32_t kTorchTableVersion = 1;

// A function may raise torch's C++ exceptions. Optional ones may be null.
struct TorchTable {
  uint64_t size;
  uint64_t version;
#define PRECAST_SINCE(major, minor, result, name, parameters) result(*name) parameters;
#define PRECAST_OPTIONAL_SINCE(major, minor, result, name, parameters) result(*name) parameters;
#include "torch_functions.h"
#undef PRECAST_SINCE
#undef PRECAST_OPTIONAL_SINCE
};

}  // namespace precast
