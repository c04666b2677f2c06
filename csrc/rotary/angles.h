// By how much heads are turned, as host code hands it to kernels: tables of cosines and sines, and which of their rows
// a token takes. Compiled on both sides, so it includes nothing.
#pragma once

namespace precast {
namespace rotary {

enum Flag : int {
  kInterleaved = 1,    // a pair are neighbours; else they are half of what is rotated apart
  kInverse = 2,        // turn back: the sines count with the other sign
  kWideTable = 4,      // cosines and sines are float32, whatever the heads are
  kLongPositions = 8,  // positions are int64, else int32
};

// Strides are in bytes.
struct Angles {
  const char* cos;
  const char* sin;
  const char* positions;  // the row of each token, one after the other; null: token t has row t
  long long cos_stride;
  long long sin_stride;
  long long rows;
  int half;  // the pairs of a head: its first 2 * half elements are rotated
  int flags;
};

static_assert(sizeof(Angles) == 56, "host and device must agree");

}  // namespace rotary
}  // namespace precast
