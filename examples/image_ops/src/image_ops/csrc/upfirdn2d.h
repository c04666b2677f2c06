// Upsample, filter, downsample: out = every down-th sample of kernel * pad(up(x)).
//
// up(x) has up - 1 zeros behind each sample; padding adds zeros, or crops where it is negative; * is the convolution,
// so the kernel is read backwards. Along one axis out has (in * up + pad0 + pad1 - taps) / down + 1 samples, rounded
// down. No intermediate is ever made: an output reads those inputs alone that meet a tap.
#pragma once

#include <cstdint>

#include "scalar.h"

namespace image_ops {

struct Axis {
  int in, out, taps, up, down, pad0;
};

struct UpFirDn {
  const void* input;   // (planes, y.in, x.in), contiguous
  const void* kernel;  // (y.taps, x.taps), in the type of the sums
  void* out;           // (planes, y.out, x.out)
  int64_t planes;
  Axis y, x;
};

// The taps that meet a sample: tap, tap + up, ...; the first one meets `sample`, each next one the next sample.
struct Meeting {
  int tap, sample;
};

IMAGE_OPS_BOTH inline Meeting first_meeting(const Axis& axis, int out) {
  const int start = out * axis.down - axis.pad0;  // where the kernel begins, in upsampled samples
  const int behind = start % axis.up;
  const int tap = behind == 0 ? 0 : (behind > 0 ? axis.up - behind : -behind);
  return {tap, (start + tap) / axis.up};
}

template <typename Acc, typename Read>
IMAGE_OPS_BOTH Acc upfirdn2d_element(const UpFirDn& work, const Acc* kernel, int out_y, int out_x, Read read) {
  const Meeting y = first_meeting(work.y, out_y), x = first_meeting(work.x, out_x);
  Acc sum = 0;
  for (int ty = y.tap, sy = y.sample; ty < work.y.taps; ty += work.y.up, ++sy) {
    if (sy < 0 || sy >= work.y.in) continue;
    const Acc* row = kernel + (work.y.taps - 1 - ty) * work.x.taps + work.x.taps - 1;
    for (int tx = x.tap, sx = x.sample; tx < work.x.taps; tx += work.x.up, ++sx) {
      if (sx < 0 || sx >= work.x.in) continue;
      sum += row[-tx] * read(int64_t{sy} * work.x.in + sx);
    }
  }
  return sum;
}

// What fits into the shared memory of a block as doubles.
constexpr int64_t kMostTaps = 4096;

#ifdef WITH_CUDA
// Returns a cudaError_t; the stream is a cudaStream_t.
int upfirdn2d_cuda(const UpFirDn& work, Scalar type, void* stream);
#endif

}  // namespace image_ops
