// A kernel family as api.cpp sees it: a name, implementations of ops, and device code if it has any.
#pragma once

#include <stdint.h>

namespace precast {

struct Implementation;  // torch.h: what one looks like depends on torch's ABI
struct KernelFamily;    // launch.h

struct Family {
  const char* name;
  const Implementation* implementations;
  int64_t implementation_count;
  KernelFamily* kernels;
};

// Hands the family's implementations for a dispatch key to torch, for the life of the process; returns how many.
int64_t register_implementations(const Family& family, const char* key);

}  // namespace precast
