// The structures that host code passes to the kernels by value. Compiled on both sides.
#pragma once

#include "../gpu/division.h"

namespace precast {
namespace causal_conv1d {

constexpr int kMostWidth = 8;

// Threads per block.
constexpr unsigned int kThreads = 128;

// Numbers of tokens, or of states: (batch, channels, tokens). Null: there are none. Strides are in bytes.
struct Lines {
  char* data;
  long long batch;
  long long channel;
  long long token;
};

// Integers, of 32 or 64 bits. Strides are in elements.
struct Integers {
  const char* data;
  long long batch;
  long long stride;
  int is_long;
  int count;
};

// Where the sequences of a row of the batch begin.
enum Cut : int {
  kWhole = 0,   // a row is a sequence
  kStarts = 1,  // there is one row; `count` sequences begin at the numbers, the last ends at one more
  kIndex = 2,   // a sequence is a run of equal numbers; a negative one is padding
};

// A unit is some neighbouring channels of a chunk of tokens. One thread walks over the tokens of a unit.
struct Walk {
  Lines x;
  Lines initial;       // by sequence, the `width` - 1 tokens before it
  const char* weight;  // (channels, width)
  const char* bias;
  Integers cuts;
  long long length;  // tokens of a row
  Division fast;     // the units of a chunk, or the chunks of a row: what neighbouring threads have
  Division chunks;   // of a row
  unsigned int total;
  unsigned int channels;
  int chunk;  // tokens
  int width;
  int cut;
  int wide;  // weight and bias are float32, and x is narrower
  int silu;
  int along;  // neighbouring threads have the chunks of one channel
  int rows;   // of the batch
  int early;  // the launch starts early
};

struct ForwardArgs {
  Walk walk;
  Lines y;
  Lines final;
};

struct BackwardArgs {
  Walk walk;
  Lines grad;
  Lines grad_final;
  Lines grad_x;
  Lines grad_initial;
  float* parts;  // (chunks of all rows, columns)
  long long columns;
};

// result[c] = round(sum of parts[i][c] over i).
struct ColumnArgs {
  const float* parts;
  char* result;
  long long columns;
  unsigned int lines;
  int dtype;  // of the result: a precast::DType
};

// Some tokens of each sequence, and the pool of states.
struct UpdateArgs {
  Lines x;
  Lines y;
  Lines state;
  const char* weight;
  const char* bias;
  Integers slots;      // null: the number of the sequence
  Integers positions;  // null: the last token of a state is the newest. Else token t is at t modulo `length`
  long long pool;      // states
  long long length;    // tokens of a state
  Division units;      // of channels
  unsigned int total;
  unsigned int channels;
  int tokens;
  int width;
  int wide;
  int silu;
  int early;
};

static_assert(sizeof(Walk) == 184 && sizeof(ForwardArgs) == 248 && sizeof(BackwardArgs) == 328 &&
                  sizeof(ColumnArgs) == 32 && sizeof(UpdateArgs) == 232,
              "host and device must agree");

}  // namespace causal_conv1d
}  // namespace precast
