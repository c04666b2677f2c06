// What host.cpp hands to the kernels of device.cu: one structure by value. Compiled on both sides.
#pragma once

#include "../common/division.h"
#include "../rotary/angles.h"

namespace precast {
namespace kv_cache {

// Keys or values of tokens. Strides are in bytes, here and below; the elements of a head lie side by side.
struct Heads {
  const char* data;
  long long token;
  long long head;
};

// The same of heads that are written where they lie.
struct WrittenHeads {
  char* data;
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
  Division head_units;   // of a head
  Division piece_units;  // of a piece of the key cache
  unsigned int tokens;
  unsigned int units;       // of the key of a token, and of its value: below 2^31
  unsigned int unit_bytes;  // 16, 8, 4 or 2
};

// Of each token come the heads of query, those of key and those of value, and as many units in each (rotate.cuh).
struct RotateArgs {
  WrittenHeads query;
  WrittenHeads key;
  Heads value;
  Cache key_cache;
  Cache value_cache;
  Slots slots;
  rotary::Angles angles;
  long long first_token;
  Division heads;        // of a token, of all three
  Division units;        // in a head
  Division piece_bytes;  // of the key cache
  unsigned int query_heads;
  unsigned int rotated_heads;  // of query and key
  unsigned int total;          // units in all: below 2^31
  unsigned int head_bytes;
};

static_assert(sizeof(CopyArgs) == 200 && sizeof(RotateArgs) == 304, "host and device must agree");

}  // namespace kv_cache
}  // namespace precast
