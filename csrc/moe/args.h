// The structures that the host files pass to the kernels by value. Compiled on both sides.
#pragma once

#include "../gpu/division.h"

namespace precast {
namespace moe {

// The maximum number of experts. A warp gates a token, so a lane handles at most 32 of them.
constexpr int kMostExperts = 1024;

// The maximum number of threads that share a token's row.
constexpr int kRowThreads = 512;

// The threads of a block of `repeat`, each of which checks one pair.
constexpr int kRepeatThreads = 128;

enum GatingFlags : int { kSigmoid = 1, kRenormalize = 2, kTopTwo = 4 };

// Gating: a warp handles one row of logits and writes `k` weights and `k` indices.
struct GatingArgs {
  const char* logits;
  const float* bias;  // null: none
  float* weights;
  int* indices;
  long long stride;  // of the logits, in bytes
  long long rows;
  Division group_size;
  int experts;
  int k;
  int groups;
  int kept_groups;
  int flags;
  int dtype;  // of the logits
  float scale;
  int shared_words;  // per warp
};

struct GatingBackwardArgs {
  const float* grad;
  const char* logits;
  const int* indices;
  char* result;
  long long stride;  // of the logits, in bytes; the result has no gaps
  long long rows;
  int experts;
  int k;
  int flags;
  int dtype;
  float scale;
  int unused;
};

constexpr int kMostSortBlocks = 8;  // that sort in one launch, as a cluster

// A stable sort of pairs by expert. A pair is a token and one of its experts, numbered token by token. Block b sorts
// the `chunk` pairs from b * chunk on. Results that a call does not need are null.
struct SortArgs {
  const char* ids;
  int* sorted;     // slot -> pair; `pairs` for an empty slot
  int* expert_of;  // block of slots -> expert; 0 after the last, as in vLLM
  int* total;      // one number: slots in use, padding included
  int* positions;  // pair -> slot; ~slot for a pair without an expert, whose slots come last
  int* ends;       // expert -> end of its slots
  int* counts;     // [block][bucket], scratch: pairs, then the block's offset in the bucket; null: one launch sorts
  int* starts;     // [bucket], scratch: first slot; the last bucket is for pairs without an expert
  int* totals;     // [bucket], scratch: pairs
  Division block_size;
  int pairs;
  int experts;
  int slots;        // of `sorted`
  int slot_blocks;  // of `expert_of`
  int chunk;
  int id_bytes;  // 4 or 8
  int unused;
};

// Copies the row of each token to its `k` slots, in units of 16, 4 or 2 bytes.
struct PermuteArgs {
  const char* rows;
  char* result;
  const int* positions;
  long long stride;     // between rows, in bytes
  long long row_bytes;  // of the result, which has no gaps
  long long slots;
  int k;
  unsigned int tokens;
  unsigned int units;
  unsigned int unit_bytes;
  int whole;
  unsigned int prefetch;  // prefetch the row this many tokens ahead into L2; 0: none
};

// The maximum number of pairs of `permute_few`, whose blocks each count all of them.
constexpr int kFewPairs = 16384, kCountingThreads = 512;

// Sorts few pairs and copies their rows, in one launch. Block (t, i) copies the i-th part of the t-th tokens.
struct PermuteFewArgs {
  const char* rows;
  char* result;
  const char* ids;
  int* positions;       // pair -> slot; ~slot for a pair without an expert, whose slots come last
  int* ends;            // expert -> end of its slots
  long long stride;     // between rows, in bytes
  long long row_bytes;  // of the result, which has no gaps
  int k;
  int pairs;
  int experts;
  int id_bytes;  // 4 or 8
  unsigned int units;
  unsigned int unit_bytes;
  int early;     // begin_launch
  int together;  // tokens of a block
};

// Sums the rows of each token, times their weights. `weights` may be null.
struct CombineArgs {
  const char* rows;
  char* result;
  const int* positions;
  const float* weights;
  long long stride;  // between rows, in bytes
  long long row_bytes;
  long long slots;
  int k;
  unsigned int tokens;
  unsigned int units;  // vectors of 16 bytes, or elements
  int dtype;
  int early;              // begin_launch; combine_any never is
  unsigned int prefetch;  // prefetch the row of the token this many ahead into L2, if it has one; 0: none
};

// The gradients of that sum. For a row: its weight times grad. For a weight: the dot product of grad and its row.
struct CombineBackwardArgs {
  const char* grad;
  const char* rows;
  char* grad_rows;
  float* grad_weights;
  const int* positions;
  const float* weights;
  long long grad_stride;  // in bytes
  long long stride;       // of the rows, in bytes
  long long row_bytes;
  long long slots;
  int k;
  unsigned int tokens;
  unsigned int units;
  int whole;
  int dtype;
  int unused;
};

// Clears the result, and records one pair of each slot as its owner.
struct ZeroArgs {
  char* data;
  long long bytes;
  const int* positions;
  int* owners;  // slot -> pair; not written for a slot without a pair
  long long slots;
  long long pairs;
};

// Recomputes each slot with several pairs as the sum of the pairs' rows, times their weights. `weights` may be null.
struct RepeatArgs {
  const char* rows;  // of the tokens
  char* result;
  const int* positions;
  const float* weights;
  const int* owners;
  long long stride;     // between rows, in bytes
  long long row_bytes;  // of the result, which has no gaps
  long long slots;
  unsigned int tokens;
  int k;
  unsigned int width;
  int dtype;
};

static_assert(sizeof(GatingArgs) == 96 && sizeof(SortArgs) == 112 && sizeof(PermuteArgs) == 72, "must agree");
static_assert(sizeof(ZeroArgs) == 48 && sizeof(RepeatArgs) == 80, "host and device must agree");
static_assert(sizeof(PermuteFewArgs) == 88, "must agree");
static_assert(sizeof(CombineArgs) == 80 && sizeof(CombineBackwardArgs) == 104, "host and device must agree");

}  // namespace moe
}  // namespace precast
