// The image ops on the CPU: the interface between the host files, which handle tensors and threads, and the *_cpu.cpp
// files, which are compiled once per CPU level. Every level defines the functions below in the namespace
// precast::image::<level>. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../cpu/cpu_level.h"
#include "args.h"

namespace precast {
namespace image {

// A row of planes is processed in pieces, so that a single wide row also has work for several threads.
constexpr int64_t kPiece = 4096;

inline int64_t pieces_of(int64_t columns) { return (columns + kPiece - 1) / kPiece; }

// The tensor as rows, as in BiasActArgs; `columns` counts elements.
struct BiasActWork {
  const void* x;      // or the gradient of y
  const void* saved;  // backward
  const void* bias;
  void* y;
  double* parts;  // planes: a sum for each piece; columns: a line of sums for each chunk; null: not wanted
  int64_t rows, columns, channels;
  int64_t chunk_rows;  // columns: rows in a chunk
  double alpha, gain, clamp;
  int activation, dtype, bias_dtype;
  bool backward, of_output;
};

// Planes: pieces [begin, end) counted through all rows. Columns: chunks [begin, end) of rows.
using BiasActFunction = void (*)(const BiasActWork& work, int64_t begin, int64_t end);

// result[c] = round(sum of parts[line][c][i] over lines and over i below `each`).
using SumFunction = void (*)(const double* parts, int64_t lines, int64_t channels, int64_t each, void* result,
                             int dtype);

// A filter is applied as a sum of terms: a column of factors over rows of x, then taps along the resulting row. A
// filter that is a product of a column and a row is one term, any other has one term for each of its columns.
struct Factor {
  double wide;  // for float64
  float narrow;
};

struct Tap {
  Factor factor;
  int at;    // the pixel that result 0 of the phase reads, counted from the group's first
  int area;  // the buffer that it is in, 0 or 1
};

// Taps that read the same buffers. With steps, a buffer has every `every`-th pixel of a row, from `low` on.
struct Group {
  int first, last;  // taps
  int column;       // of factors
  int low, slot;    // result 0 begins with pixel low * every + slot
};

// The results `first`, `first + results`, ... along a row. Results that meet no tap have no phase, and are zero before.
struct Phase {
  int first, first_group, last_group;
};

constexpr int kSpan = 15;      // the largest span
constexpr int kChannels = 64;  // channels at a time, where they are innermost

struct UpfirdnWork {
  const void* x;
  void* y;
  int64_t channels;  // 1 unless channels are innermost: then an image is a plane
  Axis vertical, horizontal;
  const Tap* taps;
  const Group* groups;
  const Phase* phases;
  const Factor* columns;  // each of vertical.taps factors
  int phase_count;
  int results, every;   // horizontal.up and horizontal.down without common factors
  int vertical_phases;  // vertical.up without the factors of vertical.down
  int span;             // the largest Tap::at
  bool shared;          // all groups read the same
  bool halves;          // every is 2, and groups read both halves of a row
  int dtype;
};

inline int64_t channel_blocks(const UpfirdnWork& work) { return (work.channels + kChannels - 1) / kChannels; }

// Rows [begin, end) of y, counted through all images and blocks of channels.
using UpfirdnFunction = void (*)(const UpfirdnWork& work, int64_t begin, int64_t end);

PRECAST_CPU_FUNCTION(planes, (const BiasActWork& work, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(columns, (const BiasActWork& work, int64_t begin, int64_t end))
PRECAST_CPU_FUNCTION(sum_parts,
                     (const double* parts, int64_t lines, int64_t channels, int64_t each, void* result, int dtype))
PRECAST_CPU_FUNCTION(upfirdn2d, (const UpfirdnWork& work, int64_t begin, int64_t end))

}  // namespace image
}  // namespace precast
