// Reduces the partial softmaxes of a cluster, whose blocks share the keys of one unit.
#pragma once

#include "../gpu/blocks.cuh"
#include "stages.cuh"

namespace precast {
namespace decode_attention {

#if PRECAST_ARCH >= 800

// Where a block keeps its partial softmax, after the warps' sums in shared memory: per row the weighted sums of values,
// the maximum score and the sum of weights.
template <class Of>
struct OwnPart {
  static constexpr int kPitch = Of::kWidth + 4, kBegin = Of::kWarps * kRows * (Of::kWidth + 8);  // floats
  static_assert((kBegin + kRows * kPitch) * 4 <= Of::kStages * Of::kWarps * 2 * kWarpKeys * Of::kRowBytes, "fits");
};

// Reduces the blocks' partial softmaxes in block order, one row per warp. All threads of the cluster call this.
template <class Of>
DEVICE void merge_cluster(const DecodeArgs& args, bool is_empty, float* room) {
  using Part = OwnPart<Of>;
  const Attention& a = args.call;
  float* const own = room + Part::kBegin;
  if (is_empty && threadIdx.x < kRows) {
    *reinterpret_cast<float2*>(own + threadIdx.x * Part::kPitch + a.value_width) = make_float2(-infinity(), 0.0f);
  }
  wait_for_cluster();
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int number = static_cast<int>(blockIdx.x) / args.cluster, units = units_of(a);
  const int rank = static_cast<int>(blockIdx.x) - number * args.cluster;
  Segment s = {};
  s.sequence = number / units;
  const int unit = number - s.sequence * units;
  s.kv_head = unit / row_tiles_of(a);
  s.first_row = (unit - s.kv_head * row_tiles_of(a)) * kRows;
  const int rows = lesser(rows_of(a) - s.first_row, kRows);
  for (int row = rank * Of::kWarps + warp; row < rows; row += args.cluster * Of::kWarps) {
    const float* const part = own + row * Part::kPitch;
    float4 stats = make_float4(-infinity(), 0.0f, 0.0f, 0.0f);  // maximum and sum of weights of block `lane`
    if (lane < args.cluster) stats = read_from(part + a.value_width, lane);
    float most = stats.x;
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
    }
    const float base = most == -infinity() ? 0.0f : most, mine = stats.y == 0.0f ? 0.0f : exp2_of(stats.x - base);
    const float total = warp_sum(stats.y * mine);
    float keep[kMostCluster];
#pragma unroll
    for (int r = 0; r < kMostCluster; ++r) keep[r] = __shfl_sync(0xffffffffu, mine, r);
    const Row place = row_of(a, s, row);
    const Closing closing = close_row(a, s.kv_head, place.head, most, total);
    const i64 to = result_row(a, s.sequence, place);
#pragma unroll
    for (int i = 0; i < Of::kWidth; i += 128) {
      const int column = i + lane * 4;
      if (column >= a.value_width) break;
      float4 q[kMostCluster];
#pragma unroll
      for (int r = 0; r < kMostCluster; ++r) {
        if (r < args.cluster) q[r] = read_from(part + column, r);
      }
      float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int r = 0; r < kMostCluster; ++r) {
        if (keep[r] == 0.0f) continue;  // a block without keys has written no sums
        v[0] += q[r].x * keep[r];
        v[1] += q[r].y * keep[r];
        v[2] += q[r].z * keep[r];
        v[3] += q[r].w * keep[r];
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] *= closing.factor;
      store_columns(a, to, column, v);
    }
    if (lane == 0) a.lse[to] = closing.lse;
  }
  wait_for_cluster();  // another block may still read this one's shared memory
}

#endif

}  // namespace decode_attention
}  // namespace precast
