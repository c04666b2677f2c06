// Attention with matrix instructions, for queries of float16 and bfloat16 from sm_80 on. Caches have the dtype of the
// query, or 8 bits: these are copied as they are and become the query's dtype, exactly, on their way to a matrix.
//
// A warp takes 16 of the 64 keys of each tile and has its own softmax, so warps wait only for their own copies:
// cp.async copies keys and values ahead into the warp's stages, those of the next segment too. A unit's rows are the 16
// rows of the matrix instruction, even if it has fewer: memory is the bottleneck. At the end of a segment the warps'
// sums are merged in the stage that is free.
#pragma once

#include "cluster_merge.cuh"
#include "warp_rows.cuh"

namespace precast {
namespace decode_attention {

#if PRECAST_ARCH >= 800

// Reduces the warps' softmaxes of a segment and writes the rows to the result, or as a partial softmax. The warps' sums
// take stage `stage` of `room`, to which no asynchronous copy may be in flight: all rows at once, or eight.
template <class Of>
DEVICE void end_rows(const DecodeArgs& args, const Segment& s, float* room, int stage, float (*stats)[2][kRows],
                     WarpRows<Of>& w) {
  constexpr int kWidth = Of::kWidth, kWarps = Of::kWarps, kSumRows = Of::kSumRows;
  const Attention& a = args.call;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
#pragma unroll
  for (int first = 0; first < kRows; first += kSumRows) {
    if (first >= s.rows) break;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r * 8 < first || r * 8 >= first + kSumRows) continue;
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
        float* const to = room + sums_at<Of>(stage, warp, row);
        const int column = n * 8 + (lane & 3) * (Of::kNarrow ? 4 : 2);
        const float *even = w.sums[n] + 2 * r, *odd = w.sums[n + 1] + 2 * r;
        if constexpr (Of::kNarrow) {
          *reinterpret_cast<float4*>(to + sum_column(row, column)) = make_float4(even[0], odd[0], even[1], odd[1]);
        } else {
          *reinterpret_cast<float2*>(to + sum_column(row, column)) = make_float2(even[0], even[1]);
          *reinterpret_cast<float2*>(to + sum_column(row, column + 8)) = make_float2(odd[0], odd[1]);
        }
      }
    }
    __syncthreads();
    const int quads = a.value_width / 4, units = lesser(s.rows - first, kSumRows) * quads;
    for (int i = static_cast<int>(threadIdx.x); i < units; i += kWarps * 32) {
      const int quotient = i / quads, row = first + quotient, column = (i - quotient * quads) * 4;
      float most = -infinity();
#pragma unroll
      for (int k = 0; k < kWarps; ++k) most = fmaxf(most, stats[k][0][row]);
      const float base = most == -infinity() ? 0.0f : most;
      float total = 0.0f, v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < kWarps; ++k) {
        const float keep = exp2_of(stats[k][0][row] - base);
        const float4 q = *reinterpret_cast<const float4*>(room + sums_at<Of>(stage, k, row) + sum_column(row, column));
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
}

template <class T, int kWidth, int kBytes = 2>
DEVICE void decode(const DecodeArgs& args) {
  using Of = Class<kWidth, kBytes>;
  extern __shared__ __align__(16) char stages[];
  __shared__ i64 sums[Of::kWarps];
  __shared__ Start found;
  __shared__ u32 present[Of::kWarps][Of::kStages];
  __shared__ float stats[Of::kWarps][2][kRows];
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const u32 room = shared_address(stages), query = room + stage_at<Of>(Of::kStages, 0);
  const Start start = args.cluster != 0 ? start_in_cluster(args) : find_start(args, sums, &found);
  const Attention& a = args.call;
  constexpr int kAhead = Of::kStages - 1;
  Walk walk(args, start), coming(args, start);
  Segment s, copied;  // whose keys are taken, and whose keys are copied
  bool more = coming.next(args, copied, true);
  int step_copied = 0;
  const auto copy_next = [&](int stage) {
    if (more) {
      const int key = key_at<Of>(copied, step_copied, warp);
      begin_copies<Of>(args, copied, key, find_block(args, copied, key), room + stage_at<Of>(stage, warp),
                       &present[warp][stage]);
      if (++step_copied == steps_of<Of>(copied)) {
        more = coming.next(args, copied, true);
        step_copied = 0;
      }
    }
    commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) copy_next(i);
  int stage = 0;  // the one before is free
  while (walk.next(args, s, false)) {
    const Scoring scoring(a, s.kv_head);
    if constexpr (Of::kSharedQuery) share_queries<Of>(a, s, stages + stage_at<Of>(Of::kStages, 0));
    WarpRows<Of> w;
    begin_rows<T>(a, s, w);
    const int steps = steps_of<Of>(s);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_copies<kAhead - 1>();
      __syncwarp();
      copy_next(stage == 0 ? kAhead : stage - 1);
      const u32 there = present[warp][stage];
      const u32 at = room + stage_at<Of>(stage, warp);
      if (there != 0) take_keys<T>(a, s, scoring, key_at<Of>(s, step, warp), at, there, query, w);
      __syncwarp();
      stage = stage + 1 == Of::kStages ? 0 : stage + 1;
    }
    end_rows(args, s, reinterpret_cast<float*>(stages),
             args.cluster != 0 ? 0
             : stage == 0      ? kAhead
                               : stage - 1,
             stats, w);
  }
  if (args.cluster != 0) merge_cluster<Of>(args, start.begin >= start.end, reinterpret_cast<float*>(stages));
}

#else

template <class T, int kWidth, int kBytes = 2>
DEVICE void decode(const DecodeArgs&) {}  // host.cpp uses decode_any there

#endif

}  // namespace decode_attention
}  // namespace precast
