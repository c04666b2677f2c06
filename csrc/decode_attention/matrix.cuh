// Attention with matrix instructions, for queries of float16 and bfloat16 from sm_80 on. Caches have the dtype of the
// query, or 8 bits: these are copied as they are and become the query's dtype, exactly, on their way to a matrix.
//
// A warp takes 16 of the 64 keys of each tile and has its own softmax, so warps wait only for their own copies:
// cp.async copies keys and values several tiles ahead into the warp's stages. A unit's rows are the 16 rows of the
// matrix instruction, even if it has fewer: memory is the bottleneck. At the end of a segment the warps' sums are
// merged in shared memory.
#pragma once

#include "cluster_merge.cuh"
#include "warp_rows.cuh"

namespace precast {
namespace decode_attention {

#if PRECAST_ARCH >= 800

// Reduces the warps' softmaxes of a segment and writes the rows to the result, or as a partial softmax. No asynchronous
// copy to `room` (shared memory) may be in flight.
template <class Of>
DEVICE void end_rows(const DecodeArgs& args, const Segment& s, float* room, float (*stats)[2][kRows], WarpRows<Of>& w) {
  constexpr int kWidth = Of::kWidth, kWarps = Of::kWarps, kPitch = kWidth + 8;
  const Attention& a = args.call;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  float* mine = room + warp * kRows * kPitch;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = w.total[r];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int row = lane / 4 + 8 * r;
    if ((lane & 3) == 0) {
      stats[warp][0][row] = w.most[r];
      stats[warp][1][row] = total;
    }
#pragma unroll
    for (int n = 0; n < kWidth / 8; n += 2) {
      float* const to = mine + row * kPitch + n * 8 + (lane & 3) * (Of::kNarrow ? 4 : 2);
      const float *even = w.sums[n] + 2 * r, *odd = w.sums[n + 1] + 2 * r;
      if constexpr (Of::kNarrow) {
        *reinterpret_cast<float4*>(to) = make_float4(even[0], odd[0], even[1], odd[1]);
      } else {
        *reinterpret_cast<float2*>(to) = make_float2(even[0], even[1]);
        *reinterpret_cast<float2*>(to + 8) = make_float2(odd[0], odd[1]);
      }
    }
  }
  __syncthreads();
  const int quads = a.value_width / 4, units = s.rows * quads;
  for (int i = static_cast<int>(threadIdx.x); i < units; i += kWarps * 32) {
    const int row = i / quads, column = (i - row * quads) * 4;
    float most = -infinity();
#pragma unroll
    for (int k = 0; k < kWarps; ++k) most = fmaxf(most, stats[k][0][row]);
    const float base = most == -infinity() ? 0.0f : most;
    float total = 0.0f, v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      const float keep = exp2_of(stats[k][0][row] - base);
      const float4 q = *reinterpret_cast<const float4*>(room + (k * kRows + row) * kPitch + column);
      total += stats[k][1][row] * keep;
      v[0] += q.x * keep;
      v[1] += q.y * keep;
      v[2] += q.z * keep;
      v[3] += q.w * keep;
    }
    if (s.whole) {
      const Row place = row_of(a, s, row);
      const Closing closing = close_row(a, s.kv_head, place.head, most, total);
      const i64 to = result_row(a, s.sequence, place);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] *= closing.factor;
      store_columns(a, to, column, v);
      if (column == 0) a.lse[to] = closing.lse;
    } else {
      using Part = OwnPart<Of>;
      float* to = args.cluster != 0 ? room + Part::kBegin + row * Part::kPitch : part_sums(args, s.slot, row);
      *reinterpret_cast<float2*>(to + column) = make_float2(v[0], v[1]);
      *reinterpret_cast<float2*>(to + column + 2) = make_float2(v[2], v[3]);
      if (column == 0) {
        to[a.value_width] = most;
        to[a.value_width + 1] = total;
      }
    }
  }
  __syncthreads();
}

template <class T, int kWidth, int kBytes = 2>
DEVICE void decode(const DecodeArgs& args) {
  using Of = Class<kWidth, kBytes>;
  extern __shared__ __align__(16) char stages[];
  __shared__ i64 sums[Of::kWarps];
  __shared__ Start found;
  __shared__ u32 present[Of::kWarps][Of::kStages];
  __shared__ float stats[Of::kWarps][2][kRows];
  constexpr u32 kStageBytes = 2 * kWarpKeys * Of::kRowBytes;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const u32 mine = shared_address(stages) + static_cast<u32>(warp) * Of::kStages * kStageBytes;
  char* const query = stages + Of::kWarps * Of::kStages * kStageBytes;
  const Start start = args.cluster != 0 ? start_in_cluster(args) : find_start(args, sums, &found);
  for_segments(args, start, [&](const Segment& s) {
    const Attention& a = args.call;
    const Scoring scoring(a, s.kv_head);
    const int steps = s.tiles * (kTile / kWarpKeys / Of::kWarps);
#pragma unroll
    for (int i = 0; i < Of::kStages - 1; ++i) {
      if (i < steps) begin_copies<Of>(args, s, key_at<Of>(s, i, warp), mine + i * kStageBytes, &present[warp][i]);
      commit_copies();
    }
    if constexpr (Of::kSharedQuery) share_queries<Of>(a, s, query);
    WarpRows<Of> w;
    begin_rows<T>(a, s, w);
    int stage = 0;
    for (int step = 0; step < steps; ++step) {
      wait_copies<Of::kStages - 2>();
      __syncwarp();
      const int key = key_at<Of>(s, step, warp);
      const u32 there = present[warp][stage];
      if (there != 0) take_keys<T>(a, s, scoring, key, mine + stage * kStageBytes, there, shared_address(query), w);
      __syncwarp();
      const int ahead = step + Of::kStages - 1, free = stage == 0 ? Of::kStages - 1 : stage - 1;
      if (ahead < steps) {
        begin_copies<Of>(args, s, key_at<Of>(s, ahead, warp), mine + free * kStageBytes, &present[warp][free]);
      }
      commit_copies();
      stage = stage + 1 == Of::kStages ? 0 : stage + 1;
    }
    __syncthreads();
    end_rows(args, s, reinterpret_cast<float*>(stages), stats, w);
  });
  if (args.cluster != 0) merge_cluster<Of>(args, start.begin >= start.end, reinterpret_cast<float*>(stages));
}

#else

template <class T, int kWidth, int kBytes = 2>
DEVICE void decode(const DecodeArgs&) {}  // host.cpp uses decode_any there

#endif

}  // namespace decode_attention
}  // namespace precast
