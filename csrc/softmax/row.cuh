// Shared by forward and backward on the GPU.
#pragma once

#include "../gpu/exponentials.cuh"
#include "args.h"

namespace precast {
namespace softmax {

// The number of columns of a row that count: all, or those up to the diagonal.
template <class Args>
DEVICE i64 open_columns(const Args& a, u32 row) {
  if (a.causal == 0) return a.columns;
  const u64 number = static_cast<u64>(a.first_row) + row;
  const u64 query = number - divided(number, static_cast<u64>(a.queries)) * static_cast<u64>(a.queries);
  const i64 open = static_cast<i64>(query) + 1 + a.diagonal;
  return open < 0 ? 0 : open > a.columns ? a.columns : open;
}

// Zeros the columns [begin, columns) of a row, using vectors where they fit.
template <class T>
DEVICE void zero_from(char* y, i64 begin, i64 columns, u32 vectors) {
  const i64 first = threadIdx.x, step = blockDim.x, per = T::kPerVector;
  i64 from = (begin + per - 1) / per;
  if (from > vectors) from = vectors;
  const i64 head = from * per > begin ? from * per : begin;
#pragma unroll 1
  for (i64 i = begin + first; i < head; i += step) T::store(y + i * T::kBytes, 0.0f);
  const Vector zeros = {{0, 0, 0, 0}};
#pragma unroll 1
  for (i64 i = from + first; i < vectors; i += step) store(y + i * 16, zeros);
  const i64 rest = vectors * per > head ? vectors * per : head;
#pragma unroll 1
  for (i64 i = rest + first; i < columns; i += step) T::store(y + i * T::kBytes, 0.0f);
}

}  // namespace softmax
}  // namespace precast
