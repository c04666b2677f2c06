// What host.cpp hands to the kernels of device.cu: one structure by value. Compiled on both sides, so it includes
// nothing.
#pragma once

namespace precast {
namespace kv_cache {

// Keys or values of tokens. Strides are in bytes, here and below; the elements of a head lie side by side.
struct Heads {
  const char* data;
  long long token;
  long long head;
};

// Where a cache has the heads of the token at one position of a block. The elements of a head are in pieces that lie
// side by side: one piece, or of a paged key cache several of x elements.
struct Cache {
  char* data;
  long long block;
  long long position;
  long long head;
  long long piece;
};

// A slot for each token; one that is negative, or not below `count`, leaves its token out.
struct Slots {
  const long long* data;
  long long stride;  // in elements
  long long count;
  long long block_size;
};

// A unit is what a thread moves at a time: 16 bytes, or fewer where something is not aligned to as many.
struct CopyArgs {
  Heads key;
  Heads value;
  Cache key_cache;
  Cache value_cache;
  Slots slots;
  unsigned int tokens;
  unsigned int units;        // of the key of a token, and of its value
  unsigned int head_units;   // of a head
  unsigned int piece_units;  // of a piece of the key cache
  unsigned int unit_bytes;   // 16, 8, 4 or 2
};

static_assert(sizeof(Heads) == 24 && sizeof(Cache) == 40 && sizeof(Slots) == 32 && sizeof(CopyArgs) == 184,
              "host and device must agree");

}  // namespace kv_cache
}  // namespace precast
