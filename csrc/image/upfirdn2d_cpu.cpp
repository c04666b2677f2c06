// Upsample, filter and downsample images on the CPU. Compiled once per CPU level.
//
// A row of y is computed in chunks, tap after tap. The pixels that a tap reads, and the results that it adds to, are a
// fixed stride apart. Without upsampling and downsampling both strides are one, and the loop is vectorized.
#include "cpu.h"
#include "numbers.h"

namespace precast::image::PRECAST_CPU_LEVEL {
namespace {

constexpr int kPart = 512;  // results at a time

PRECAST_INLINE int divided_up(int a, int b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

// Adds one tap to the results [begin, end) of a row. Result o uses upsampled pixel o down - pad + tap.
template <class T, class Real>
PRECAST_INLINE void add_tap(const Axis& axis, int tap, Real factor, const T* row, int begin, int end, Real* sums) {
  const int offset = tap - axis.pad;
  // The first result from `begin` on that uses a pixel of x, and the strides to the next.
  int step = axis.up;
  while (step > 1 && !(axis.up % step == 0 && axis.down % step == 0)) --step;  // the greatest common divisor
  const int results = axis.up / step, pixels = axis.down / step;
  int first = divided_up(-offset, axis.down);
  if (first < begin) first = begin;
  int tries = 0;
  while (tries < results && (first * static_cast<int64_t>(axis.down) + offset) % axis.up != 0) ++first, ++tries;
  if (tries == results) return;  // this tap falls on zeros only
  const int64_t pixel = (first * static_cast<int64_t>(axis.down) + offset) / axis.up;
  if (first >= end || pixel >= axis.in) return;
  int64_t count = (end - first + results - 1) / results;
  const int64_t there = (axis.in - pixel + pixels - 1) / pixels;
  if (there < count) count = there;
  const T* from = row + pixel;
  Real* to = sums + (first - begin);
  if (results == 1 && pixels == 1) {
    alignas(64) Real buffer[kPart + kLanes];
    read(from, count, buffer);
    for (int64_t i = 0; i < count; ++i) to[i] += factor * buffer[i];
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    Real one[kLanes];
    read(from + i * pixels, 1, one);
    to[i * results] += factor * one[0];
  }
}

template <class T>
void rows_of(const UpfirdnWork& work, int64_t begin, int64_t end) {
  using Real = typename RealOf<T>::Type;
  const Axis &v = work.vertical, &h = work.horizontal;
  alignas(64) Real sums[kPart + kLanes];
  for (int64_t index = begin; index < end; ++index) {
    const int64_t plane = index / v.out;
    const int row = static_cast<int>(index - plane * v.out);
    const T* x = static_cast<const T*>(work.x) + plane * work.x_plane;
    T* y = static_cast<T*>(work.y) + plane * work.y_plane + static_cast<int64_t>(row) * h.out;
    for (int column = 0; column < h.out; column += kPart) {
      const int last = h.out < column + kPart ? h.out : column + kPart;
      for (int i = 0; i < kPart + kLanes; ++i) sums[i] = 0;
      for (int ty = 0; ty < v.taps; ++ty) {
        const int64_t at = static_cast<int64_t>(row) * v.down - v.pad + ty;
        if (at < 0 || at % v.up != 0 || at / v.up >= v.in) continue;
        const T* line = x + at / v.up * h.in;
        for (int tx = 0; tx < h.taps; ++tx) {
          const int64_t tap =
              static_cast<int64_t>(work.flip ? ty : v.taps - 1 - ty) * h.taps + (work.flip ? tx : h.taps - 1 - tx);
          const Real factor = work.wide_filter ? static_cast<Real>(static_cast<const double*>(work.filter)[tap])
                                               : static_cast<Real>(static_cast<const float*>(work.filter)[tap]);
          add_tap<T, Real>(h, tx, factor, line, column, last, sums);
        }
      }
      const Real gain = static_cast<Real>(work.gain);
      for (int i = 0; i < last - column; ++i) sums[i] *= gain;
      write(y + column, last - column, static_cast<const Real*>(sums));
    }
  }
}

}  // namespace

void upfirdn2d(const UpfirdnWork& work, int64_t begin, int64_t end) {
  with_number(work.dtype, [&](auto zero) { rows_of<decltype(zero)>(work, begin, end); });
}

}  // namespace precast::image::PRECAST_CPU_LEVEL
