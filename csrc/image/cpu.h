// The image ops on the CPU: the interface between the host files, which handle tensors and threads, and the *_cpu.cpp
// files, which are compiled once per CPU level. Every level defines the functions below in the namespace
// precast::image::<level>. Nothing here throws, allocates or starts threads.
#pragma once

#include <stdint.h>

#include "../common/cpu_level.h"
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

struct UpfirdnWork {
  const void* x;
  const void* filter;
  void* y;
  int64_t x_plane, y_plane;  // elements from one plane to the next; planes have no gaps inside
  Axis vertical, horizontal;
  double gain;
  int dtype;
  bool flip, wide_filter;
};

// Rows [begin, end) of y, counted through all planes.
using UpfirdnFunction = void (*)(const UpfirdnWork& work, int64_t begin, int64_t end);

#define PRECAST_IMAGE_CPU_LEVEL(level)                                                                         \
  namespace level {                                                                                            \
  void planes(const BiasActWork& work, int64_t begin, int64_t end);                                            \
  void columns(const BiasActWork& work, int64_t begin, int64_t end);                                           \
  void sum_parts(const double* parts, int64_t lines, int64_t channels, int64_t each, void* result, int dtype); \
  void upfirdn2d(const UpfirdnWork& work, int64_t begin, int64_t end);                                         \
  }
PRECAST_EACH_CPU_LEVEL(PRECAST_IMAGE_CPU_LEVEL)
#undef PRECAST_IMAGE_CPU_LEVEL

}  // namespace image
}  // namespace precast
