// Attention over a paged cache on the GPU. See host.cpp for which kernel serves what, plan.cuh for how keys are split over
// blocks, matrix.cuh and any.cuh for what a block does with them.
#include "any.cuh"
#include "matrix.cuh"

namespace precast {
namespace decode_attention {

constexpr int kMergeWarps = 4;

// A block for each row of the result. Rows that one block of the first kernel had whole are there already; for the
// others the parts are put together in their order. What has no keys is zero.
DEVICE void merge(const DecodeArgs& args) {
#if PRECAST_ARCH >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // it is launched while the first kernel still runs
#endif
  __shared__ float sums[kMergeWarps][kMostWidth], totals[kMergeWarps], mosts[kMergeWarps];
  const Attention& a = args.call;
  const int row = static_cast<int>(blockIdx.x), per_sequence = a.queries * a.heads;
  const int sequence = row / per_sequence, among = row - sequence * per_sequence;
  const int query = among / a.heads, head = among - query * a.heads, group = group_of(a), kv_head = head / group;
  const int shared_row = query * group + head - kv_head * group;  // of those that share the key head
  const int unit = kv_head * row_tiles_of(a) + shared_row / kRows;
  const i64 first = args.starts[sequence], tiles = (args.starts[sequence + 1] - first) / units_of(a);
  const i64 run = run_of(args.starts[a.sequences], args.blocks);
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  int from = 0, to = -1;
  if (tiles > 0) {
    const i64 begin = first + unit * tiles;
    from = static_cast<int>(divided(static_cast<u64>(begin), static_cast<u64>(run)));
    to = static_cast<int>(divided(static_cast<u64>(begin + tiles - 1), static_cast<u64>(run)));
    if (from == to) return;
  }
  // The part that begins where the unit does is its block's second: see Segment::slot.
  const auto part = [&](int block) {
    return part_sums(args, block * 2 + (block == from ? 1 : 0), shared_row & (kRows - 1));
  };
  float most = -infinity();
  for (int block = from + static_cast<int>(threadIdx.x); block <= to; block += kMergeWarps * 32) {
    most = fmaxf(most, part(block)[a.value_width]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
  }
  if (lane == 0) mosts[warp] = most;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kMergeWarps; ++k) most = fmaxf(most, mosts[k]);
  const float base = most == -infinity() ? 0.0f : most;
  float total = 0.0f, sum[kMostWidth / 32] = {};
  for (int block = from + warp; block <= to; block += kMergeWarps) {
    const float* p = part(block);
    const float keep = exp2_of(p[a.value_width] - base);
    total += p[a.value_width + 1] * keep;
#pragma unroll
    for (int i = 0; i < kMostWidth / 32; ++i) {
      const int column = i * 32 + lane;
      if (column < a.value_width) sum[i] += p[column] * keep;
    }
  }
#pragma unroll
  for (int i = 0; i < kMostWidth / 32; ++i) sums[warp][i * 32 + lane] = sum[i];
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  total = 0.0f;
#pragma unroll
  for (int k = 0; k < kMergeWarps; ++k) total += totals[k];
  const Closing closing = close_row(a, kv_head, head, most, total);
  const int column = static_cast<int>(threadIdx.x) * 4;
  if (threadIdx.x == 0) a.lse[row] = closing.lse;
  if (column >= a.value_width) return;
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = 0.0f;
#pragma unroll
    for (int k = 0; k < kMergeWarps; ++k) v[i] += sums[k][column + i];
    v[i] *= closing.factor;
  }
  store_columns(a, row, column, v);
}

}  // namespace decode_attention
}  // namespace precast

// An entry point for blocks of `threads`, of which `blocks` should fit a multiprocessor by their registers.
#define KERNEL(name, threads, blocks, ...)                                          \
  extern "C" __global__ void __launch_bounds__(threads, blocks)                     \
      name(const precast::decode_attention::DecodeArgs a) {                         \
    using namespace precast;                                                        \
    using namespace precast::decode_attention;                                      \
    __VA_ARGS__(a);                                                                 \
  }

KERNEL(decode_64_f16, 128, 3, decode<Float16, 64>)
KERNEL(decode_64_bf16, 128, 3, decode<BFloat16, 64>)
KERNEL(decode_128_f16, 128, 2, decode<Float16, 128>)
KERNEL(decode_128_bf16, 128, 2, decode<BFloat16, 128>)
KERNEL(decode_256_f16, 64, 3, decode<Float16, 256>)
KERNEL(decode_256_bf16, 64, 3, decode<BFloat16, 256>)
KERNEL(decode_any, 128, 4, decode_any_types)
KERNEL(merge_parts, 128, 8, merge)
