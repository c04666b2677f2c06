// Upsample, filter and downsample images on the GPU. See upfirdn2d.cpp for which kernel serves which image.
//
//   y = every down-th pixel of the convolution of the filter with pad(x with up - 1 zeros behind each pixel)
//
// No intermediate exists: a result reads only the pixels of x that meet one of its taps. Tap t of output o is at
// s = o down - pad + t of the upsampled image, which is pixel s / up of x if up divides s. Arithmetic is in float32, or
// in float64 for float64; a result is rounded once.
#include "../gpu/device.cuh"
#include "args.h"
#include "entries.h"

namespace precast {
namespace image {

// ---- any steps, any filter, any strides: one result for each thread ----

// The taps of one axis that fall on pixels: tap, tap + up, ... The first falls on `pixel`, and each next one on the
// next pixel.
struct Meeting {
  int tap, pixel;
};

DEVICE Meeting first_meeting(const Axis& axis, int output) {
  const int start = output * axis.down - axis.pad;
  if (start < 0) {  // skips the taps before pixel 0
    return {-start, 0};
  }
  const int pixel = (start + axis.up - 1) / axis.up;
  return {pixel * axis.up - start, pixel};
}

template <class T>
struct Reader {
  using Real = float;
  static DEVICE float load(const char* p, i64 i) { return T::load(p + i * T::kBytes); }
  static DEVICE void store(char* p, i64 i, float v) { T::store(p + i * T::kBytes, v); }
};

struct Float64 {};
template <>
struct Reader<Float64> {
  using Real = double;
  static DEVICE double load(const char* p, i64 i) { return reinterpret_cast<const double*>(p)[i]; }
  static DEVICE void store(char* p, i64 i, double v) { reinterpret_cast<double*>(p)[i] = v; }
};

template <class T>
DEVICE void general(const UpfirdnArgs& a) {
  using Real = typename Reader<T>::Real;
  const u32 index = blockIdx.x * blockDim.x + threadIdx.x;  // a launch has fewer than 2^31
  if (index >= a.outputs) return;
  // Images, channels, rows and columns, or images, rows, columns and channels.
  const u32 channels = a.channels, width = static_cast<u32>(a.horizontal.out);
  const u32 height = static_cast<u32>(a.vertical.out);
  u32 rest = index, channel = 0;
  if (a.channels_last != 0) {
    rest = index / channels;
    channel = index - rest * channels;
  }
  const u32 line = rest / width, column = rest - line * width;
  u32 image = line / height;
  const u32 row = line - image * height;
  if (a.channels_last == 0) {
    const u32 plane = image;
    image = plane / channels;
    channel = plane - image * channels;
  }
  const char* const x = a.x;
  const i64 from = static_cast<i64>(image) * a.x_strides[0] + static_cast<i64>(channel) * a.x_strides[1];
  const Meeting v = first_meeting(a.vertical, static_cast<int>(row));
  const Meeting h = first_meeting(a.horizontal, static_cast<int>(column));
  Real sum = 0;
#pragma unroll 1
  for (int ty = v.tap, py = v.pixel; ty < a.vertical.taps && py < a.vertical.in; ty += a.vertical.up, ++py) {
    const int fy = (a.flip != 0 ? ty : a.vertical.taps - 1 - ty) * a.horizontal.taps;
    const i64 line_from = from + py * a.x_strides[2];
#pragma unroll 1
    for (int tx = h.tap, px = h.pixel; tx < a.horizontal.taps && px < a.horizontal.in; tx += a.horizontal.up, ++px) {
      const int at = fy + (a.flip != 0 ? tx : a.horizontal.taps - 1 - tx);
      const Real f = a.wide_filter != 0 ? static_cast<Real>(reinterpret_cast<const double*>(a.filter)[at])
                                        : static_cast<Real>(reinterpret_cast<const float*>(a.filter)[at]);
      sum += f * Reader<T>::load(x, line_from + px * a.x_strides[3]);
    }
  }
  const i64 to = static_cast<i64>(image) * a.y_strides[0] + static_cast<i64>(channel) * a.y_strides[1] +
                 static_cast<i64>(row) * a.y_strides[2] + static_cast<i64>(column) * a.y_strides[3];
  Reader<T>::store(a.y, to, sum * static_cast<Real>(a.gain));
}

// ---- filters of up to 4 x 4 taps, up and down 1 or 2 on both axes, planes without gaps between columns ----
// A thread computes kColumnBytes of adjacent columns of a strip of rows. It walks down the strip and keeps the pixels
// or sums that the next rows need in registers. So each pixel is read from memory once, and a few times from the L1
// cache.

constexpr int kTaps = 4;

// The pixels of a row of x that a thread reads: kPixels from `first` on, with zeros outside of the image. While the
// loads are in flight, a register holds a pixel or a word.
template <class T, int kPixels_, Read kRead>
struct Source {
  static constexpr bool kPairs = kRead != kSingles, kShared = kRead == kSharedWords;
  static constexpr int kPixels = kPixels_, kHeld = kPairs ? (kPixels + 2) / 2 : kPixels, kMasks = (kPixels + 1) / 2;
  struct Held {
    u32 word[kHeld];
  };

  const UpfirdnArgs& a;
  const char* column;
  i64 stride;       // in bytes
  int top, bottom;  // the rows that are needed and exist
  int first;        // kShared: the first pixel
  u32 ahead;        // bits of the first word that come before the first pixel
  bool inside[kShared ? 1 : kHeld];
  u32 mask[kShared ? kMasks : 1];  // the bits of pixels in the image

  DEVICE Source(const UpfirdnArgs& args, const char* plane, int first_column, int first_row, int rows)
      : a(args),
        stride(a.x_strides[2] * T::kBytes),
        top(first_row > 0 ? first_row : 0),
        bottom(first_row + rows < a.vertical.in ? first_row + rows : a.vertical.in),
        first(first_column),
        ahead(kRead == kWords ? (static_cast<u32>(first_column) & 1u) * 16 : 0u) {
    const int from = kRead == kWords ? first & ~1 : first;
    column = plane + static_cast<i64>(from) * T::kBytes;
    const auto exists = [&](int pixel) { return static_cast<u32>(pixel) < static_cast<u32>(a.horizontal.in); };
    if constexpr (kShared) {
#pragma unroll
      for (int i = 0; i < kMasks; ++i) {
        mask[i] = (exists(first + 2 * i) ? 0xffffu : 0u) | (exists(first + 2 * i + 1) ? 0xffff0000u : 0u);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) inside[i] = exists(from + (kPairs ? 2 * i : i));
    }
  }

  // Bits in the first word of a row before `first`.
  DEVICE u32 before(int row) const {
    const u32 pixels = (static_cast<u32>(reinterpret_cast<u64>(column)) >> 1) + row * static_cast<u32>(a.x_strides[2]);
    return kShared ? (pixels & 1u) * 16 : ahead;
  }

  DEVICE void load(int row, Held& held) const {
    const bool there = row >= top && row < bottom;
    const char* p = column + row * stride;
    if constexpr (kShared) {
      const u32 skip = before(row) / 16, after = static_cast<u32>(first) + 1 - skip;
      p -= skip * T::kBytes;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const bool some = after + 2 * i <= static_cast<u32>(a.horizontal.in);  // one of its pixels is of this row
        held.word[i] = there && some ? *reinterpret_cast<const u32*>(p + i * 4) : 0u;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if constexpr (kPairs) {
          held.word[i] = there && inside[i] ? *reinterpret_cast<const u32*>(p + i * 4) : 0u;
        } else {
          held.word[i] = __float_as_uint(there && inside[i] ? T::load(p + i * T::kBytes) : 0.0f);
        }
      }
    }
  }

  DEVICE void unpack(int row, const Held& held, float (&pixels)[kPixels]) const {
    const u32 bits = before(row);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if constexpr (kPairs) {
        float pair[2];
        u32 word = __funnelshift_r(held.word[i], i + 1 < kHeld ? held.word[i + 1] : 0u, bits);
        if constexpr (kShared) word &= i < kMasks ? mask[i] : 0u;
        T::unpack(word, pair);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (2 * i + e < kPixels) pixels[2 * i + e] = pair[e];
        }
      } else {
        pixels[i] = __uint_as_float(held.word[i]);
      }
    }
  }
};

// Writes a thread's columns of y: all of them at once, or the first `count` one by one. kShared: if rows begin
// anywhere, eight bytes at a multiple of eight, of which the next lane may have some, and one by one only what no lane
// writes so. All threads of a warp then call it for each row of their strips.
template <class T, bool kShared>
struct Target {
  static constexpr int kColumns = kColumnBytes / T::kBytes;
  const UpfirdnArgs& a;
  char* at;
  i64 stride;
  bool whole;  // rows begin at multiples of eight bytes
  int row;
  int count;   // columns from the thread's first on
  bool first;  // no lane before this one has columns of the row
  bool last;   // no lane follows

  DEVICE Target(const UpfirdnArgs& args, u32 plane, int first_row, int column)
      : a(args),
        stride(a.y_strides[2] * T::kBytes),
        whole(a.step == kColumns),
        row(first_row),
        count(a.horizontal.out - column),
        first(column == 0 || (threadIdx.x & 31) == 0),
        last((threadIdx.x & 31) == 31) {
    at = a.y + (static_cast<i64>(plane) * a.y_strides[1] + row * a.y_strides[2] + column) * T::kBytes;
  }

  DEVICE void store(const float (&y)[kColumns]) {
    u32 word[4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float part[T::kPerWord];
#pragma unroll
      for (int e = 0; e < T::kPerWord; ++e) part[e] = y[i * T::kPerWord + e];
      word[i] = T::pack(part);
    }
    char* const to = at;
    const bool exists = !kShared || static_cast<u32>(row) < static_cast<u32>(a.vertical.out);
    ++row;
    at += stride;
    if (whole) {
      if (exists) store_eight(to, word[0], word[1]);
      return;
    }
    if constexpr (kShared) {
      store_shared(to, exists, word, y);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < count) T::store(to + i * T::kBytes, y[i]);
      }
    }
  }

  // The columns before the next multiple of eight bytes belong to the lane before, if it has the row.
  DEVICE void store_shared(char* to, bool exists, u32 (&word)[4], const float (&y)[kColumns]) const {
    const u32 address = static_cast<u32>(reinterpret_cast<u64>(to));
    word[2] = __shfl_down_sync(0xffffffffu, word[0], 1);
    if (T::kBytes == 4 || a.step == 2) {
      const bool odd = (address & 4) != 0, full = count >= kColumns + (odd ? T::kPerWord : 0) && !(odd && last);
      if (exists && full) store_eight(to + (odd ? 4 : 0), odd ? word[1] : word[0], odd ? word[2] : word[1]);
      if (exists && (odd ? first : !full)) *reinterpret_cast<u32*>(to) = word[0];
      if (exists && !full && count > T::kPerWord) *reinterpret_cast<u32*>(to + 4) = word[1];
    } else {
      word[3] = __shfl_down_sync(0xffffffffu, word[1], 1);
      if (!exists) return;
      const int before = static_cast<int>((0u - address / T::kBytes) & (kColumns - 1));
      const bool full = count >= kColumns + before && (before == 0 || !last);
      if (full) {
        const u32 bits = (before & 1) * 16;
        if (before >= 2) {
#pragma unroll
          for (int i = 0; i < 3; ++i) word[i] = word[i + 1];
        }
        store_eight(to + before * T::kBytes, __funnelshift_r(word[0], word[1], bits),
                    __funnelshift_r(word[1], word[2], bits));
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < count && (i < before ? first || count < before : !full)) T::store(to + i * T::kBytes, y[i]);
      }
    }
  }

  static DEVICE void store_eight(char* to, u32 low, u32 high) {
    *reinterpret_cast<u64*>(to) = static_cast<u64>(high) << 32 | low;
  }
};

// Loads the filter, times the gain, into shared memory, in the order in which it is applied to pixels. All threads call
// this. Returns whether the filter is separable, judged by its middle column and row, up to rounding. The filters of
// most image generators are; a row of x is then summed once for all rows of y.
DEVICE bool load_filter(const UpfirdnArgs& a, float (&tap)[kTaps][kTaps]) {
  const int height = a.vertical.taps, width = a.horizontal.taps, y = threadIdx.x / kTaps, x = threadIdx.x % kTaps;
  if (threadIdx.x < kTaps * kTaps) {
    const int fy = a.flip != 0 ? y : height - 1 - y, fx = a.flip != 0 ? x : width - 1 - x;
    const bool exists = y < height && x < width;
    tap[y][x] = exists ? static_cast<float>(a.gain) * reinterpret_cast<const float*>(a.filter)[fy * width + fx] : 0.0f;
  }
  __syncthreads();
  bool fits = tap[1][1] != 0.0f;
  if (threadIdx.x < kTaps * kTaps) {
    const float other = tap[y][x] * tap[1][1], apart = fabsf(tap[y][1] * tap[1][x] - other);
    fits = fits && apart <= 2.4e-7f * fabsf(other) && apart < infinity();
  }
  return __syncthreads_and(fits) != 0;
}

// Walks down rows: each step loads `kNew` of them and reuses the last `kKept`. The loads of the next kSteps steps are
// in flight while a step computes. The first kKept rows are loaded by steps whose body is skipped.
template <int kValues, int kNew, int kKept, int kSteps, class From, class Reduce, class Step>
DEVICE void walk(const From& source, int row, int steps, const Reduce& reduce, const Step& step) {
  constexpr int kRows = kSteps * kNew, kBefore = (kKept + kRows - 1) / kRows;  // rounds
  float window[kKept + kNew][kValues];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
#pragma unroll
    for (int e = 0; e < kValues; ++e) window[i][e] = 0.0f;
  }
  row += kKept - kBefore * kRows;
  typename From::Held held[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) source.load(row + i, held[i]);
#pragma unroll 1
  for (int at = -kBefore * kSteps; at < steps; at += kSteps) {
    row += kRows;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int n = 0; n < kNew; ++n) {
        float pixels[From::kPixels];
        source.unpack(row + i * kNew + n - kRows, held[i * kNew + n], pixels);
        reduce(pixels, window[kKept + n]);
        source.load(row + i * kNew + n, held[i * kNew + n]);
      }
      if (at >= 0 && at + i < steps) step(&window[0]);
#pragma unroll
      for (int j = 0; j < kKept; ++j) {
#pragma unroll
        for (int e = 0; e < kValues; ++e) window[j][e] = window[j + kNew][e];
      }
    }
  }
}

// The pixels in flight per thread: 32 bytes, in words of one or two pixels. Compilers for 7.x have too few registers
// for more, and those for 11.x and 12.x for two steps of wide rows.
template <Read kRead, int kDown>
constexpr int kPixelsAhead = kRead != kSingles && PRECAST_ARCH >= 800 && !(kDown == 2 && PRECAST_ARCH >= 1100) ? 16 : 8;

// Without upsampling. The rows of y step through x by kDown.
template <class T, int kDown, Read kRead>
DEVICE void filtered(const UpfirdnArgs& a, const char* plane, int column, int row, int rows, Target<T, false> target,
                     const float (&tap)[kTaps][kTaps], bool is_product) {
  constexpr int kColumns = Target<T, false>::kColumns, kPixels = (kColumns - 1) * kDown + kTaps;
  constexpr int kKept = kTaps - kDown, kSteps = kPixelsAhead<kRead, kDown> / (kDown * kColumns);
  const int first = row * kDown - a.vertical.pad;
  const Source<T, kPixels, kRead> source(a, plane, column * kDown - a.horizontal.pad, first, rows * kDown + kKept);
  if (is_product) {
    float across[kTaps], along[kTaps];
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      across[i] = tap[1][i];
      along[i] = tap[i][1] / tap[1][1];
    }
    const auto reduce = [&](const float (&pixels)[kPixels], float (&sums)[kColumns]) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sums[c] = across[0] * pixels[c * kDown];
#pragma unroll
        for (int i = 1; i < kTaps; ++i) sums[c] = fmaf(across[i], pixels[c * kDown + i], sums[c]);
      }
    };
    walk<kColumns, kDown, kKept, kSteps>(source, first, rows, reduce, [&](const float (*window)[kColumns]) {
      float y[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        y[c] = along[0] * window[0][c];
#pragma unroll
        for (int i = 1; i < kTaps; ++i) y[c] = fmaf(along[i], window[i][c], y[c]);
      }
      target.store(y);
    });
    return;
  }
  // A filter that is not separable reads each row once per row of taps, which takes few registers.
#pragma unroll 1
  for (int at = 0; at < rows; ++at) {
    float y[kColumns] = {};
#pragma unroll 1
    for (int i = 0; i < kTaps; ++i) {
      typename Source<T, kPixels, kRead>::Held held;
      float pixels[kPixels];
      source.load(first + at * kDown + i, held);
      source.unpack(first + at * kDown + i, held, pixels);
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) y[c] = fmaf(tap[i][j], pixels[c * kDown + j], y[c]);
      }
    }
    target.store(y);
  }
}

// Upsampling by 2: a row of x yields two rows of y. On each axis, a result uses two taps: 0 and 2, or 1 and 3. Even
// results start at the window's first pixel, odd ones there or at the next. Rows of a strip begin with an even one.
template <class T, Read kRead>
DEVICE void upsampled(const UpfirdnArgs& a, const char* plane, int column, int row, int rows, Target<T, true> target,
                      const float (&tap)[kTaps][kTaps]) {
  constexpr int kColumns = Target<T, true>::kColumns, kPixels = kColumns / 2 + 2, kSide = kColumns / 2 + 1;
  const int sx = column - a.horizontal.pad, odd_x = sx & 1, first = (row - a.vertical.pad) >> 1;  // column is even
  const Source<T, kPixels, kRead> source(a, plane, (sx + 1) >> 1, first, (rows + 1) / 2 + 2);
  // of[p][q][i][j]: for the result in row p and column q of a two by two block, the tap of the pixel in row i and
  // column j of its two by two pixels
  float of[2][2][2][2];
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const int p = k >> 3, q = k >> 2 & 1, i = k >> 1 & 1, j = k & 1;
    of[p][q][i][j] = tap[2 * i + p][2 * j + (q ^ odd_x)];
  }
  // The pixels of even columns, then those of odd ones.
  const auto sides = [&](const float (&pixels)[kPixels], float (&values)[2 * kSide]) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      values[i] = pixels[i];
      values[kSide + i] = odd_x != 0 ? pixels[i] : pixels[i + 1];
    }
  };
  const auto step = [&](const float (*window)[2 * kSide]) {
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      float y[kColumns] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            y[c] = fmaf(of[p][c & 1][i][j], window[p + i][(c & 1) * kSide + c / 2 + j], y[c]);
          }
        }
      }
      target.store(y);
    }
  };
  walk<2 * kSide, 1, 2, kPixelsAhead<kRead, 1> / kColumns>(source, first, a.strip_rows / 2, sides, step);
}

template <class T, int kUp, int kDown, Read kRead>
DEVICE void strip(const UpfirdnArgs& a, const char* plane, int column, int row, int rows, Target<T, kUp == 2> target,
                  const float (&tap)[kTaps][kTaps], bool is_product) {
  if constexpr (kUp == 2) {
    upsampled<T, kRead>(a, plane, column, row, rows, target, tap);
  } else {
    filtered<T, kDown, kRead>(a, plane, column, row, rows, target, tap, is_product);
  }
}

template <class T, int kUp, int kDown>
DEVICE void strips(const UpfirdnArgs& a) {
  constexpr int kColumns = Target<T, kUp == 2>::kColumns;
  __shared__ float tap[kTaps][kTaps];
  const bool is_product = load_filter(a, tap);
  const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= a.outputs) return;
  const u32 groups = (static_cast<u32>(a.horizontal.out) + kColumns - 1) / kColumns, line = index / groups;
  const u32 plane = line / static_cast<u32>(a.strips);
  const int column = static_cast<int>(index - line * groups) * kColumns;
  const int odd = kUp == 2 ? a.vertical.pad & 1 : 0;  // the first row of the first strip is not there
  const int row = static_cast<int>(line - plane * a.strips) * a.strip_rows - odd;
  const int rest = a.vertical.out - row, rows = rest < a.strip_rows ? rest : a.strip_rows;
  const char* const from = a.x + static_cast<i64>(plane) * a.x_strides[1] * T::kBytes;
  const Target<T, kUp == 2> target(a, plane, row, column);
  if constexpr (T::kBytes == 2) {
    if (a.read == kWords) {
      return strip<T, kUp, kDown, kWords>(a, from, column, row, rows, target, tap, is_product);
    }
    if constexpr (kUp == 2) {
      if (a.read == kSharedWords) {
        return strip<T, kUp, kDown, kSharedWords>(a, from, column, row, rows, target, tap, is_product);
      }
    }
  }
  strip<T, kUp, kDown, kSingles>(a, from, column, row, rows, target, tap, is_product);
}

// Compilers for 10.x and later need more registers for the loads in flight.
#if PRECAST_ARCH / 100 == 10
#define STRIPS_RESIDENT 512
#elif PRECAST_ARCH >= 1100
#define STRIPS_RESIDENT 640
#else
#define STRIPS_RESIDENT 768
#endif

UPFIRDN2D_KERNELS(KERNEL)

}  // namespace image
}  // namespace precast
