// A kernel family as api.cpp sees it: a name, implementations of ops, and device code if there is any.
#pragma once

#include <stdint.h>

namespace precast {

struct Implementation;  // torch.h; its definition depends on torch's ABI
struct KernelFamily;    // launch.h

struct Family {
  const char* name;
  const Implementation* implementations;
  int64_t implementation_count;
  KernelFamily* kernels;
};

// Registers the family's implementations for a dispatch key with torch for the life of the process. Returns their
// number.
int64_t register_implementations(const Family& family, const char* key, const char* space = "precast");

}  // namespace precast
