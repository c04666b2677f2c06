// The rotation angles that host code passes to kernels: tables of cosines and sines, and the table row of each token.
// Compiled on both sides, so it includes nothing.
#pragma once

namespace precast {
namespace rotary {

enum Flag : int {
  kInterleaved = 1,    // pairs are neighbours; else a pair is half of the rotated part apart
  kInverse = 2,        // rotate back: negate the sines
  kWideTable = 4,      // cosines and sines are float32 for any dtype of the heads
  kLongPositions = 8,  // positions are int64, else int32
  kEachProduct = 16,   // products are rounded to the dtype of the heads before they are added
  kWholeTable = 32,    // a row has numbers for the first elements of pairs, then others for the second elements
};

// Strides are in bytes.
struct Angles {
  const char* cos;
  const char* sin;
  const char* positions;  // the table row of each token, contiguous; null: token t has row t
  long long cos_stride;
  long long sin_stride;
  long long rows;
  int half;  // pairs in a head: its first 2 * half elements are rotated
  int flags;
};

static_assert(sizeof(Angles) == 56, "host and device must agree");

}  // namespace rotary
}  // namespace precast
