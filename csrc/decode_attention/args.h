// The structures that host.cpp passes to the kernels of both devices. Compiled on both sides, so it includes only
// numbers.
#pragma once

#include "../gpu/division.h"

namespace precast {
namespace decode_attention {

constexpr int kMostQueries = 16;  // per sequence in a call
constexpr int kMostBlockSize = 256;
constexpr int kRows = 16;  // rows per tile: the query heads that share a key head, for all queries

constexpr int kMostCluster = 8;  // blocks

constexpr int kMergeLine = 260;  // floats: 256 sums and two numbers, a multiple of 16 bytes

enum Flag : int {
  kLongTables = 1,       // block tables are int64, else int32
  kLongLengths = 2,      // lengths are int64, else int32
  kHeadKeyScales = 4,    // key_scales has one scale per key head, else one for all
  kHeadValueScales = 8,  // the same for value_scales
};

// Element types of caches. The first three are the numbers of a precast::DType.
enum CacheType : int { kCacheFloat32, kCacheFloat16, kCacheBFloat16, kCacheE4M3, kCacheE5M2 };

// One call. Strides are in bytes unless a comment says otherwise.
struct Attention {
  const char* query;
  const char* keys;
  const char* values;
  const char* tables;  // block_tables
  const char* lengths;
  const float* slopes;  // ALiBi slopes, one per head; null: none
  const float* sinks;   // one extra score per head, without a value; null: none
  const float* key_scales;
  const float* value_scales;
  char* out;   // contiguous: sequences, queries, heads, value width
  float* lse;  // contiguous: sequences, queries, heads
  long long query_sequence, query_token, query_head;
  long long key_block, key_position, key_head, key_piece;
  long long value_block, value_position, value_head, value_piece;
  long long table_row, length_stride;  // in elements
  long long blocks;                    // in the caches
  float scale;
  float softcap;  // 0: no cap
  int sequences, queries, heads, kv_heads;
  int key_width, value_width;
  int key_piece_width;    // adjacent elements of a key: all of them, or x
  int value_piece_width;  // adjacent elements of a value: all of them, or one
  int block_size;
  int table_blocks;  // columns of block_tables
  int window;        // the most keys that a query sees; 0: no limit
  int dtype;         // of query and out: the number of a precast::DType
  int cache_dtype;   // a CacheType
  int flags;
};

// Arguments of the GPU kernels, which also need the addresses of their partial results.
struct DecodeArgs {
  Attention call;
  Division block_size;
  Division pieces;    // 16-byte chunks in a piece of a key
  float* parts;       // two per block of the first kernel: rows of value_width sums, then maxima, then sums of weights
  long long* starts;  // the first tile number of each sequence, followed by the total number of tiles
  int blocks;         // in the first kernel
  int cluster;        // blocks that share a unit and merge it by themselves; 0: the line of all tiles is split
};

}  // namespace decode_attention
}  // namespace precast
