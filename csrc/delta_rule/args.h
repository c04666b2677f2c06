// The structures that host.cpp passes to the kernels of both devices. Compiled on both sides, so it includes nothing.
#pragma once

namespace precast {
namespace delta_rule {

constexpr int kMostKeyDim = 256;
constexpr int kChunk = 64;         // tokens that the chunked kernels take at a time
constexpr int kBlockColumns = 32;  // of the state: an item on the CPU, and a block of the kernels by chunks
constexpr float kEps = 1e-6f;      // of the l2 norm, as in FLA and transformers

enum Flag : int {
  kL2Norm = 1,
  kKeyGates = 2,     // a gate per element of a key, else one per head
  kLongStarts = 4,   // starts are int64, else int32
  kLongIndices = 8,  // the same for indices
  kLongAccepted = 16,
  kEachToken = 32,  // the state after each token has an index
  kEarly = 64,      // the launch starts early
};

// Strides are in bytes, here and below. The elements of a head are contiguous.
struct Heads {
  const char* data;  // null: absent
  long long token;
  long long head;
  int dtype;  // the number of a precast::DType
};

// States of (key_dim, value_dim). The elements of a row are contiguous.
struct States {
  char* data;
  long long slot;
  long long head;
  long long row;
};

struct Rule {
  Heads q, k, v, g, beta;
  States from, to;       // from: null for zeros
  const char* starts;    // first tokens of sequences, followed by the number of tokens; null: all have `length`
  const char* indices;   // slots; null: a sequence has the state of its number
  const char* accepted;  // the state of token accepted - 1 is the first one; null: that of token 0
  long long index_sequence, index_token, accepted_stride, starts_stride;  // in elements
  long long tokens;                                                       // in all
  long long slots;
  char* out;  // contiguous: tokens, value_heads, value_dim
  int out_dtype;
  int state_dtype;
  int sequences;
  int length;
  int key_heads, value_heads;
  int key_dim, value_dim;
  float scale;
  int flags;
};

// What the two launches of a prefill share, for each chunk of tokens: matrices in the order in which the threads of a
// matrix instruction hold them (chunk.cuh).
struct ChunkArgs {
  Rule rule;
  char* queries;   // per chunk and key head
  char* keys;      // the same, transposed
  char* erased;    // per chunk and value head, as all below: minus the keys by which the state is corrected
  char* values;    // the values that they are corrected to
  char* scores;    // of queries and keys
  float* factors;  // kChunk for queries, kChunk for values, and the decay of the chunk
  int stages;      // of shared memory in the second launch
};

constexpr int kFactors = 2 * kChunk + 4;  // floats

}  // namespace delta_rule
}  // namespace precast
