// The structures that host.cpp passes to the kernels of device.cu by value. Compiled on both sides.
#pragma once

#include "../gpu/division.h"
#include "../rotary/angles.h"
#include "../rotary/head_norm.h"

namespace precast {
namespace kv_cache {

// Keys or values of tokens. Strides are in bytes, here and below. The elements of a head are contiguous.
struct Heads {
  const char* data;
  long long token;
  long long head;
};

// The same for heads that are written in place.
struct WrittenHeads {
  char* data;
  long long token;
  long long head;
};

// A cache: where it stores the heads of the token at one position of a block. The elements of a head form contiguous
// pieces: one piece, or several of x elements in a paged key cache, or one per element in a value cache by element.
struct Cache {
  char* data;
  long long block;
  long long position;
  long long head;
  long long piece;
};

// One slot per token. A slot that is negative or at least `count` skips its token.
struct Slots {
  const long long* data;
  long long stride;  // in elements
  long long count;
  long long block_size;
};

// A unit is what a thread moves at a time: 16 bytes, or fewer if something is less aligned.
struct CopyArgs {
  Heads key;
  Heads value;
  Cache key_cache;
  Cache value_cache;  // its address is null if there are only keys
  Slots slots;
  Division head_units;         // per head
  Division key_piece_units;    // per piece of the key cache
  Division value_piece_units;  // per piece of the value cache
  unsigned int tokens;
  unsigned int units;       // in the key of a token, and in its value: below 2^31
  unsigned int unit_bytes;  // 16, 8, 4 or 2
};

// For each token, the heads of query, key and value follow each other, with the same number of units in each
// (rotate.cuh).
struct RotateArgs {
  WrittenHeads query;
  WrittenHeads key;
  Heads value;
  Cache key_cache;
  Cache value_cache;
  Slots slots;
  rotary::Angles angles;
  long long first_token;
  Division heads;              // per token, over all three
  Division units;              // per head
  Division key_piece_bytes;    // in the key cache
  Division value_piece_bytes;  // in the value cache
  unsigned int query_heads;
  unsigned int rotated_heads;  // in query and key
  unsigned int total;          // units in total: below 2^31
  unsigned int head_bytes;
};

// The same for heads that are normalised first. A head has a power of two of units, up to 32, of which the last may be
// empty.
struct NormRotateArgs {
  RotateArgs rotate;
  rotary::HeadNorm norm;
};

static_assert(sizeof(CopyArgs) == 208 && sizeof(RotateArgs) == 312 && sizeof(NormRotateArgs) == 344,
              "host and device must agree");

}  // namespace kv_cache
}  // namespace precast
