// Attention over a paged cache on the GPU. host.cpp chooses the kernel, plan.cuh assigns keys to blocks, and matrix.cuh
// and any.cuh compute the partial softmax of a block.
#include "entries.h"
#include "matrix.cuh"

namespace precast {
namespace decode_attention {

// Reduces the partial softmaxes of a row of the result, one block per row, in the order of the first kernel's blocks.
// host.cpp chooses the number of warps; each uses a line of shared memory. A row that one block of the first kernel
// handled completely is already written. A row without keys becomes zero.
DEVICE void merge(const DecodeArgs& args) {
  extern __shared__ __align__(16) char room[];
  float (*const lines)[kMergeLine] = reinterpret_cast<float (*)[kMergeLine]>(room);  // sums, maximum, sum of weights
  const Attention& a = args.call;
  const int row = static_cast<int>(blockIdx.x), per_sequence = a.queries * a.heads;
  const int sequence = row / per_sequence, among = row - sequence * per_sequence;
  const int query = among / a.heads, head = among - query * a.heads, group = group_of(a), kv_head = head / group;
  const int shared_row = query * group + head - kv_head * group;  // index among the rows that share the key head
  const int unit = kv_head * row_tiles_of(a) + shared_row / kRows;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5;
  launch_before_has_ended();
  next_launch_may_start();
  const int tiles = span_of(a, sequence).tiles;
  const i64 run = run_of(args.starts[a.sequences], args.blocks);
  int from = 0, to = -1;
  if (tiles > 0) {
    const i64 begin = args.starts[sequence] + static_cast<i64>(unit) * tiles;
    from = static_cast<int>(divided(static_cast<u64>(begin), static_cast<u64>(run)));
    to = static_cast<int>(divided(static_cast<u64>(begin + tiles - 1), static_cast<u64>(run)));
    if (from == to) return;
  }
  float most = -infinity(), total = 0.0f, sum[kMostWidth / 32] = {};
#pragma unroll 4
  for (int block = from + warp; block <= to; block += warps) {
    // If a unit starts within a block, its partial softmax is the block's second one: see Segment::slot.
    const float* p = part_sums(args, block * 2 + (block == from ? 1 : 0), shared_row & (kRows - 1));
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
  const Closing closing = close_row(a, kv_head, head, most, total);
  if (threadIdx.x == 0) a.lse[row] = closing.lse;
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= closing.factor;
  store_columns(a, row, column, v);
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
