// The structure that host.cpp passes to the kernels by value. Compiled on both sides.
#pragma once

#include "../gpu/division.h"

namespace precast {
namespace state_space {

// Threads per block, and rows of a state that a thread has.
constexpr unsigned int kThreads = 128, kRows = 4;

// Numbers by sequence and head, or by head, float32 or of the dtype of x. Null: there are none. Strides in elements.
struct Numbers {
  const char* data;
  long long sequence;
  long long head;
  int wide;
  int unused;
};

// Numbers by sequence, head or group, and element. Strides are in bytes; the elements are contiguous.
struct Vectors {
  char* data;
  long long sequence;
  long long head;
};

struct UpdateArgs {
  char* state;  // (slots, heads, rows, size), contiguous in its last two dimensions
  long long state_slot;
  long long state_head;
  Vectors x;
  Vectors y;
  Vectors z;
  Vectors b;
  Vectors c;
  Numbers dt;
  Numbers decay;
  Numbers skip;
  Numbers dt_bias;
  const char* slots;  // null: the number of the sequence
  long long slot_stride;
  long long pool;
  Division heads;
  Division units;  // of kRows rows of a head
  unsigned int total;
  unsigned int lanes;  // that share a row: a power of two up to 32
  int group;           // heads of a group of b and c
  int rows;
  int size;
  int long_slots;
  int softplus;
  int early;
};

static_assert(sizeof(UpdateArgs) == 352, "host and device must agree");

}  // namespace state_space
}  // namespace precast
