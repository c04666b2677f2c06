// The RMS norm of each head before its rotation, as host code passes it to kernels. Compiled on both sides, so it
// includes nothing.
#pragma once

namespace precast {
namespace rotary {

struct HeadNorm {
  const char* query_weight;  // a number for each element of a head, contiguous; null: heads are not normalised
  const char* key_weight;
  float eps;
  float inverse_width;
  int casting;  // that of rms_norm
  int wide;     // the weights are float32, and the heads are narrower
};

static_assert(sizeof(HeadNorm) == 32, "host and device must agree");

}  // namespace rotary
}  // namespace precast
