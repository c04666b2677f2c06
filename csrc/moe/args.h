// The structures that the host files pass to the kernels by value. Compiled on both sides.
#pragma once

#include "../common/division.h"

namespace precast {
namespace moe {

// Most experts, and so most values per lane of a warp that has a token.
constexpr int kMostExperts = 1024;

// Most threads that share a token's row.
constexpr int kRowThreads = 512;

// Pairs that a block looks at for slots with several, and its threads.
constexpr int kRepeatThreads = 128;

enum GatingFlags : int { kSigmoid = 1, kRenormalize = 2, kTopTwo = 4 };

// Rows of logits; a warp has a row. A row of weights and indices has `k` elements.
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

// Pairs of a token and an expert, numbered token by token. Block b of `blocks` has `chunk` of them, from b * chunk on.
// Null for what a call does not need.
struct SortArgs {
  const char* ids;
  int* sorted;     // slot -> pair; `pairs` in a slot without one
  int* expert_of;  // block of slots -> expert; 0 after the last, as in vLLM
  int* total;      // one number: slots in use, with those that fill blocks up
  int* positions;  // pair -> slot; ~slot for a pair without an expert, whose slots come last
  int* ends;       // expert -> end of its slots
  int* counts;     // [block][bucket], between the launches of many blocks: pairs, then places
  int* starts;     // [bucket], between these launches: first slot, of one bucket more than there are experts
  int* totals;     // [bucket], between these launches: pairs
  Division block_size;
  int pairs;
  int experts;
  int slots;        // of `sorted`
  int slot_blocks;  // of `expert_of`
  int chunk;
  int id_bytes;  // 4 or 8
  int unused;
};

// Rows of `units` units of 16, 4 or 2 bytes go to the places of a token, of which it has `k`.
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

// Most pairs of few tokens, whose places every block finds by itself.
constexpr int kFewPairs = 1024;

// Few tokens: their places and their rows. Block (t, part) has token t.
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
};

// The weighted sum of a token's rows; `weights` may be null.
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
};

// Its gradients: for the rows, weights times grad; for each weight, the product of grad and its row.
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

// Memory that becomes zero. Each slot gets a number of one of its pairs as its owner.
struct ZeroArgs {
  char* data;
  long long bytes;
  const int* positions;
  int* owners;  // slot -> pair; a slot without a pair keeps what was there
  long long slots;
  long long pairs;
};

// Makes the row of each slot that has several pairs the sum of their rows, times their weights, which may be null.
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
static_assert(sizeof(PermuteFewArgs) == 80, "must agree");
static_assert(sizeof(CombineArgs) == 72 && sizeof(CombineBackwardArgs) == 104, "host and device must agree");

}  // namespace moe
}  // namespace precast
