// Shared by forward and backward on the GPU.
#pragma once

#include "../common/shifted.cuh"
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

// The vectors of a row in which an `any` kernel can move 16 bytes at a time, and the elements before them. What is
// outside of the vectors is moved one element at a time.
template <class T>
struct Peeled {
  i64 head, vectors, others;  // elements before the vectors, vectors, and elements outside of them

  template <class Args>
  DEVICE Peeled(const Args& a, const char* row, i64 open) : head(0), vectors(a.vectors) {
    if (a.peeled != 0) {
      head = static_cast<i64>(-reinterpret_cast<u64>(row) & 15) / T::kBytes;
      if (head > open) head = open;
      vectors = (open - head) / T::kPerVector;
    }
    if (vectors > open / T::kPerVector) vectors = open / T::kPerVector;
    others = open - vectors * T::kPerVector;
  }
  // The column of one of the others, and the first byte of a vector.
  DEVICE i64 column(i64 other) const { return other < head ? other : other + vectors * T::kPerVector; }
  DEVICE i64 byte(i64 vector) const { return head * T::kBytes + vector * 16; }
};

// The maximum over the threads that share a row. The rules of row_sum apply, with other `shared` memory. NaN is
// ignored.
template <bool kNarrow = true>
DEVICE float row_max(float v, float* shared) {
  if (kNarrow && blockDim.x < 32) {
#pragma unroll 1
    for (u32 distance = blockDim.x >> 1; distance > 0; distance >>= 1) {
      v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, distance));
    }
    return v;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, distance));
  if (blockDim.x == 32) return v;
  const u32 warps = blockDim.x >> 5, padded = (warps + 3) & ~3u;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  if (threadIdx.x >= warps && threadIdx.x < padded) shared[threadIdx.x] = -infinity();
  __syncthreads();
  const float4* quads = reinterpret_cast<const float4*>(shared);
#pragma unroll 1
  for (u32 i = 0; i < padded / 4; ++i) {
    const float4 q = quads[i];
    v = fmaxf(v, fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w)));
  }
  return v;
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
