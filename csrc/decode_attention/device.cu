// Attention over a paged cache on the GPU. host.cpp chooses the kernel, plan.cuh assigns keys to blocks, and matrix.cuh
// and any.cuh compute the partial softmax of a block.
#include "entries.h"
#include "matrix.cuh"

namespace precast {
namespace decode_attention {

// Reduces the partial softmaxes of a row of a unit, in the order of the first kernel's blocks. host.cpp chooses the
// number of warps; each uses a line of shared memory. A row that one block of the first kernel handled completely is
// already written. A row without keys becomes zero.
DEVICE void merge_row(const DecodeArgs& args, u32 number, int from, int to) {
  extern __shared__ __align__(16) char room[];
  float (*const lines)[kMergeLine] = reinterpret_cast<float (*)[kMergeLine]>(room);  // sums, maximum, sum of weights
  const Attention& a = args.call;
  const int shared_row = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5;
  float most = -infinity(), total = 0.0f, sum[kMostWidth / 32] = {};
#pragma unroll 2
  for (int block = from + warp; block <= to; block += warps) {
    // If a unit starts within a block, its partial softmax is the block's second one: see Segment::slot.
    const float* p = part_sums(args, block * 2 + (block == from ? 1 : 0), shared_row);
    const float its_most = p[a.value_width], its_total = p[a.value_width + 1];
    float its_sum[kMostWidth / 32];
#pragma unroll
    for (int i = 0; i < kMostWidth / 32; ++i) its_sum[i] = i * 32 + lane < a.value_width ? p[i * 32 + lane] : 0.0f;
    const float now = fmaxf(most, its_most), base = now == -infinity() ? 0.0f : now;
    const float keep = exp2_of(most - base), add = exp2_of(its_most - base);
    most = now;
    total = total * keep + its_total * add;
#pragma unroll
    for (int i = 0; i < kMostWidth / 32; ++i) sum[i] = sum[i] * keep + its_sum[i] * add;
  }
#pragma unroll
  for (int i = 0; i < kMostWidth / 32; ++i) lines[warp][i * 32 + lane] = sum[i];
  if (lane == 0) {
    lines[warp][kMostWidth] = most;
    lines[warp][kMostWidth + 1] = total;
  }
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x) * 4;
  if (column >= a.value_width) return;
  most = -infinity();
  for (int k = 0; k < warps; ++k) most = fmaxf(most, lines[k][kMostWidth]);
  const float base = most == -infinity() ? 0.0f : most;
  float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  total = 0.0f;
  for (int k = 0; k < warps; ++k) {
    const float keep = exp2_of(lines[k][kMostWidth] - base);
    const float4 q = *reinterpret_cast<const float4*>(lines[k] + column);
    total += lines[k][kMostWidth + 1] * keep;
    v[0] += q.x * keep;
    v[1] += q.y * keep;
    v[2] += q.z * keep;
    v[3] += q.w * keep;
  }
  const u32 units = static_cast<u32>(units_of(a)), row_tiles = static_cast<u32>(row_tiles_of(a));
  Segment s = {};
  s.sequence = static_cast<int>(number / units);
  s.kv_head = static_cast<int>(number % units / row_tiles);
  s.first_row = static_cast<int>(number % row_tiles) * kRows;
  if (s.first_row + shared_row >= rows_of(a)) return;
  const Row place = row_of(a, s, shared_row);
  const Closing closing = close_row(a, s.kv_head, place.head, most, total);
  const i64 row = result_row(a, s.sequence, place);
  if (threadIdx.x == 0) a.lse[row] = closing.lse;
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= closing.factor;
  store_columns(a, row, column, v);
}

// Blocks with the same blockIdx.y have the same row of different units. Each lane looks at another unit of the block.
DEVICE void merge(const DecodeArgs& args) {
  const Attention& a = args.call;
  const u32 units = static_cast<u32>(units_of(a)), all = static_cast<u32>(a.sequences) * units, step = gridDim.x;
  launch_before_has_ended();
  next_launch_may_start();
#pragma unroll 1
  for (u32 base = blockIdx.x; base < all; base += 32 * step) {
    const u32 mine = base + (threadIdx.x & 31) * step, unit = mine < all ? mine : 0;
    int2 share = *reinterpret_cast<const int2*>(args.shares + 2 * static_cast<i64>(unit));
    if (span_of(a, static_cast<int>(unit / units)).tiles == 0) share = make_int2(0, -1);
    u32 apart = __ballot_sync(0xffffffffu, mine < all && share.x != share.y);
#pragma unroll 1
    for (; apart != 0; apart &= apart - 1) {
      const int other = __ffs(static_cast<int>(apart)) - 1;
      const int from = __shfl_sync(0xffffffffu, share.x, other), to = __shfl_sync(0xffffffffu, share.y, other);
      merge_row(args, base + static_cast<u32>(other) * step, from, to);
      __syncthreads();
    }
  }
}

// NVRTC 12.9 cannot fit the kernels for 128 elements into a third of sm_120's registers.
#if PRECAST_ARCH >= 1200
#define RESIDENT_OF_128 256
#else
#define RESIDENT_OF_128 384
#endif

DECODE_ATTENTION_KERNELS(KERNEL)

}  // namespace decode_attention
}  // namespace precast
