// Torch's functions under their own names, read from the table of this library. The loader attaches the table before it
// registers anything; until then every entry is null.
#pragma once

#include "torch_table.h"

// The oldest torch that has all of them itself. Older ones need an adapter.
#define PRECAST_TORCH_FLOOR_MAJOR 2
#define PRECAST_TORCH_FLOOR_MINOR 10

namespace precast {

// Hidden, so that a call is one load and one jump.
extern TorchTable torch_table __attribute__((visibility("hidden")));

#define PRECAST_SINCE(major, minor, result, name, parameters)                                       \
  static_assert(major * 100 + minor <= PRECAST_TORCH_FLOOR_MAJOR * 100 + PRECAST_TORCH_FLOOR_MINOR, \
                "newer than the oldest torch that is supported");                                   \
  static constexpr auto& name = torch_table.name;
#define PRECAST_OPTIONAL_SINCE(major, minor, result, name, parameters) static constexpr auto& name = torch_table.name;
#include "torch_functions.h"
#undef PRECAST_SINCE
#undef PRECAST_OPTIONAL_SINCE

// Registration tells torch which version of the stack layout our functions use. It is the floor's; newer versions of
// torch convert from it. Torch's headers call the number TORCH_ABI_VERSION.
constexpr uint64_t kTorchAbiVersion = uint64_t{PRECAST_TORCH_FLOOR_MAJOR * 256 + PRECAST_TORCH_FLOOR_MINOR} << 48;

}  // namespace precast
