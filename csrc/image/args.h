// The structures that the host files pass to the kernels by value, and the activations. Compiled on both sides, so it
// includes nothing but division.h.
#pragma once

#include "../gpu/division.h"

namespace precast {
namespace image {

// The `act` argument of the ops. The first three are piecewise linear ("leaky"): the sign of the result determines the
// slope.
enum Activation : int {
  kLinear = 0,
  kRelu = 1,
  kLeakyRelu = 2,
  kTanh = 3,
  kSigmoid = 4,
  kElu = 5,
  kSelu = 6,
  kSoftplus = 7,
  kSwish = 8,
};

// The numbers of precast::DType, and float64.
enum Number : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kFloat64 = 3 };

// Units of a row that a thread loads before it uses the first.
constexpr int kUnits = 2;

// Threads per block of the bias_act kernels, and lines that a block of the sums reads at a time.
constexpr int kThreads = 256;
constexpr int kFlatThreads = 64;  // if planes are flat
constexpr int kSumThreads = 1024;

// The tensor as contiguous rows. In planes, all elements of a row belong to the channel row % channels; in columns, all
// elements of a column belong to one channel. A unit is a vector of 16 bytes or one element.
struct BiasActArgs {
  const char* x;      // or the gradient of y
  const char* saved;  // backward: y or x; null: the slope is `gain` everywhere
  const char* bias;   // null: none
  char* y;            // or the gradient of x
  void* parts;        // backward: (lines, channels) sums in the precision of the arithmetic; null: not wanted
  long long rows;
  long long columns;  // units in a row
  long long channels;
  long long row_step;  // columns: rows that a block sums; planes: blocks for one row
  double alpha, gain;
  double clamp;  // NaN: results are not clamped
  int activation;
  int dtype;
  int bias_dtype;
  int of_output;   // `saved` is y
  int by_columns;  // the layout is columns; read by `any`
};

// Planes as one row of vectors. A structure of its own, because a larger one makes other kernels slower.
struct FlatArgs {
  BiasActArgs planes;  // columns are elements; row_step: the most blocks that have a part of one plane
  Division columns, channels;
  int sharing;  // threads that sum a plane's part of a block
  int unused;
};

// result[c] = round(sum of parts[i][c] over i).
struct SumArgs {
  const void* parts;  // (lines, channels)
  char* result;
  long long channels;
  long long lines;
  int dtype;
};

// The bytes of each row of y that a thread of a strip kernel computes.
constexpr int kColumnBytes = 8;

// How the strip kernels read pixels: one by one; as words of two, where rows begin and end at multiples of four bytes;
// or as such words in rows that begin and end within one, which a row shares with its neighbour.
enum Read : int { kSingles, kWords, kSharedWords };

// One axis of upfirdn2d. Sizes are below 2^30 in all steps.
struct Axis {
  int in, out, taps, up, down, pad;
};

// Strides are in elements.
struct UpfirdnArgs {
  const char* x;
  const char* filter;  // (y.taps, x.taps), float32, or float64 if `wide_filter`
  char* y;
  unsigned outputs;        // for `general`: elements of y; for the others: groups of columns times strips times planes
  unsigned channels;       // for `general`
  long long x_strides[4];  // of images, channels, rows and columns
  long long y_strides[4];
  Axis vertical, horizontal;
  double gain;
  int flip;  // 0: the filter is read backwards, as a convolution does
  int dtype;
  int wide_filter;
  int channels_last;  // for `general`: adjacent threads compute adjacent channels
  int strips;         // of rows in a plane; a thread computes a few columns of one strip
  int strip_rows;     // even
  int step;           // rows of y begin at multiples of so many columns: a thread's, or a power of two below
  int read;           // how pixels of x are read, a Read
  int unused;
};

static_assert(sizeof(BiasActArgs) == 120 && sizeof(FlatArgs) == 152 && sizeof(SumArgs) == 40 &&
                  sizeof(UpfirdnArgs) == 192,
              "host and device must agree");

}  // namespace image
}  // namespace precast
