// Sums of exponentials over a row, for the kernels of softmax and of cross entropy.
#pragma once

#include "cluster.cuh"

namespace precast {

// Two instructions, compared with eight of expf: all that a row at memory speed can afford. For the results that
// matter, down to e^-30, the error is within the rounding of the input. Results below 2^-126 become zero.
DEVICE float exponential(float v) { return exp2_of(v * 1.44269504f); }

// A sum of exponentials, kept relative to the largest value so far.
struct Running {
  float largest, sum;

  template <int N>
  DEVICE void add(const float (&z)[N]) {
    float top = z[0];
#pragma unroll
    for (int i = 1; i < N; ++i) top = fmaxf(top, z[i]);
    if (top > largest) {
      sum *= exponential(largest - top);
      largest = top;
    }
    const float base = largest == -infinity() ? 0.0f : largest;  // nothing counted yet: exp(-inf) is 0, NaN stays NaN
    float part = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) part += exponential(z[i] - base);
    sum += part;
  }
};

DEVICE float warp_max(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, distance));
  return v;
}

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
  v = warp_max(v);
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

// The same over a cluster of blocks, in one round. v[0] is the largest value of this warp, and v[1] its sum of
// exponentials, relative to that value at `rate` per unit; v becomes those of the row. Every other number becomes the
// sum over all warps.
template <u32 kSets, int N>
DEVICE void send_total(float (&v)[N], Rounds<kSets>& rounds) {
#pragma unroll
  for (int n = 1; n < N; ++n) v[n] = warp_sum(v[n]);
  rounds.send_warps(v);
}

template <u32 kSets, int N>
DEVICE void receive_total(float (&v)[N], float rate, Rounds<kSets>& rounds) {
  const u32 lane = threadIdx.x & 31, warps = cluster_blocks() * (blockDim.x >> 5);
  const Exchange* lines = rounds.template receive<N>();
  float top = -infinity();
#pragma unroll 1
  for (u32 i = lane; i < warps; i += 32) top = fmaxf(top, lines[0][i]);
  v[0] = warp_max(top);
  float sum = 0.0f;
#pragma unroll 1
  for (u32 i = lane; i < warps; i += 32) sum += lines[1][i] * exp2_of((lines[0][i] - v[0]) * rate);
  v[1] = warp_sum(sum);
#pragma unroll
  for (int n = 2; n < N; ++n) {
    sum = 0.0f;
#pragma unroll 1
    for (u32 i = lane; i < warps; i += 32) sum += lines[n][i];
    v[n] = warp_sum(sum);
  }
}

// The largest element of a vector, or NaN if there is no number.
template <class T>
DEVICE float largest_of(const Vector& v) {
#if PRECAST_ARCH >= 800
  if constexpr (T::kBytes == 2) {
    float pair[2];
    T::unpack(T::larger(T::larger(v.word[0], v.word[1]), T::larger(v.word[2], v.word[3])), pair);
    return fmaxf(pair[0], pair[1]);
  }
#endif
  float top = -infinity();
  for_elements<T>(v, [&](int, float e) { top = fmaxf(top, e); });
  return top;
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

}  // namespace precast
