// A warp's online softmax: the scores of 16 keys at a time with the rows of a unit, and the sums of their values.
#pragma once

#include "stages.cuh"

namespace precast {
namespace decode_attention {

#if PRECAST_ARCH >= 800

// A warp's state for the 16 rows. Each thread holds elements of two rows: `lane / 4` and `lane / 4 + 8`.
template <class Of>
struct WarpRows {
  u32 query[Of::kSharedQuery ? 1 : Of::kWidth / 16][4];
  float sums[Of::kWidth / 8][4];
  float most[2], total[2];  // `total`: over this thread's columns
  int position[2];
  float slope[2];
};

// Copies the 16 rows to shared memory in the layout of a stage, with zeros for missing rows. Ends with a block barrier.
template <class Of>
DEVICE void share_queries(const Attention& a, const Segment& s, char* to) {
  constexpr int kChunks = Of::kWidth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += Of::kWarps * 32) {
    const int number = i / kChunks, chunk = i % kChunks;
    Vector v = {{0, 0, 0, 0}};
    if (number < s.rows && chunk * 8 < a.key_width) {
      const Row row = row_of(a, s, number);
      v = load(a.query + s.sequence * a.query_sequence + row.query * a.query_token + row.head * a.query_head +
               chunk * 16);
    }
    *reinterpret_cast<Vector*>(to + chunk_place<Of>(number, chunk)) = v;
  }
  __syncthreads();
}

// Of 16 elements of a key, a thread holds two pairs that are eight elements apart if they have 16 bits, and four
// adjacent elements if they have 8. The order of a dot product's terms does not matter, so the query is loaded in the
// order of the keys.
template <class T, class Of>
DEVICE void begin_rows(const Attention& a, const Segment& s, WarpRows<Of>& w) {
  constexpr int kWidth = Of::kWidth, kPair = Of::kNarrow ? 8 : 4, kNextPair = Of::kNarrow ? 4 : 16;  // bytes
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const char* at[2];
  bool has[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int number = lane / 4 + 8 * i;
    has[i] = number < s.rows;
    const Row row = row_of(a, s, has[i] ? number : 0);
    at[i] = a.query + s.sequence * a.query_sequence + row.query * a.query_token + row.head * a.query_head +
            (lane & 3) * kPair;
    w.position[i] = has[i] ? row.position : s.length;
    w.slope[i] = a.slopes != nullptr ? a.slopes[row.head] * kLog2E : 0.0f;
    w.most[i] = -infinity();
    w.total[i] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < (Of::kSharedQuery ? 0 : kWidth / 16); ++k) {
    const bool inside = k * 16 < a.key_width;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // rows i % 2, columns 0 to 7 or 8 to 15
      w.query[k][i] =
          inside && has[i & 1] ? *reinterpret_cast<const u32*>(at[i & 1] + k * 32 + (i >> 1) * kNextPair) : 0u;
    }
  }
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w.sums[n][i] = 0.0f;
  }
}

// Converts a pair of float16, widened from 8 bits, to a pair of T.
template <class T>
DEVICE u32 from_halves(u32 pair);
template <>
DEVICE u32 from_halves<Float16>(u32 pair) {
  return pair;
}
template <>
DEVICE u32 from_halves<BFloat16>(u32 pair) {
  float v[2];
  Float16::unpack(pair, v);
  return BFloat16::pack(v);
}

// Widens four adjacent 8-bit elements to two pairs of T.
template <class T>
DEVICE void widen_four(u32 four, bool e5m2, u32& low, u32& high) {
#if PRECAST_ARCH >= 900
  if (e5m2) {  // the upper halves of float16
    low = __byte_perm(four, 0, 0x1404);
    high = __byte_perm(four, 0, 0x3424);
  } else {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"(static_cast<u16>(four)));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"(static_cast<u16>(four >> 16)));
  }
  low = from_halves<T>(low);
  high = from_halves<T>(high);
#else
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 bits = four >> (8 * i) & 0xffu;
    v[i] = e5m2 ? Float8E5M2::widen(bits) : Float8E4M3::widen(bits);
  }
  const float first[2] = {v[0], v[1]}, second[2] = {v[2], v[3]};
  low = T::pack(first);
  high = T::pack(second);
#endif
}

// Adds the dot products of 16 8-bit keys with the warp's rows to `x`.
template <class T, class Of>
DEVICE void multiply_narrow_keys(const Attention& a, u32 stage, const WarpRows<Of>& w, float (&x)[2][4]) {
  const int lane = static_cast<int>(threadIdx.x) & 31, key_row = lane & 15, key_chunk = lane >> 4;
  const bool e5m2 = a.cache_dtype == kCacheE5M2;
#pragma unroll
  for (int k = 0; k < Of::kWidth / 16; k += 2) {
    if (k * 16 >= a.key_width) break;
    u32 m[4];  // of this chunk and the next one: keys 0 to 7 and 8 to 15
    load_matrices(m, stage + chunk_place<Of>(key_row, k + key_chunk));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= 2 && (k + 1) * 16 >= a.key_width) break;  // no copy has filled that chunk
      u32 low, high;
      widen_four<T>(m[i], e5m2, low, high);
      multiply<T>(x[i & 1], w.query[k + (i >> 1)], low, high);
    }
  }
}

// Adds 16 8-bit values times their weights to the warp's sums. Of each 16 columns, `sums` holds the even ones first,
// then the odd ones, because a transposed load moves two adjacent columns at once.
template <class T, class Of>
DEVICE void add_narrow_values(const Attention& a, u32 values, const u32 (&weights)[4], WarpRows<Of>& w) {
  const int lane = static_cast<int>(threadIdx.x) & 31, value_row = lane & 15, value_chunk = lane >> 4;
  const bool e5m2 = a.cache_dtype == kCacheE5M2;
#pragma unroll
  for (int n = 0; n < Of::kWidth / 16; n += 2) {
    if (n * 16 >= a.value_width) break;
    u32 m[4];  // of this chunk and the next one: values 0 to 7 and 8 to 15
    load_transposed(m, values + chunk_place<Of>(value_row, n + value_chunk));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if ((n + i) * 16 >= a.value_width) break;
      u32 even[2], odd[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // bytes: two columns of one value, then of the next
        widen_four<T>(__byte_perm(m[2 * i + half], 0, 0x3120), e5m2, even[half], odd[half]);
      }
      multiply<T>(w.sums[2 * (n + i)], weights, even[0], even[1]);
      multiply<T>(w.sums[2 * (n + i) + 1], weights, odd[0], odd[1]);
    }
  }
}

// One step of a warp's online softmax, over the 16 keys in `stage`.
template <class T, class Of>
DEVICE void take_keys(const Attention& a, const Segment& s, const Scoring& scoring, int key, u32 stage, u32 present,
                      u32 shared_query, WarpRows<Of>& w) {
  constexpr int kWidth = Of::kWidth;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  float x[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
  if constexpr (Of::kNarrow) multiply_narrow_keys<T>(a, stage, w, x);
  const int key_row = (lane & 7) + (lane >> 4) * 8, key_chunk = lane >> 3 & 1;
#pragma unroll
  for (int k = 0; k < (Of::kNarrow ? 0 : kWidth / 16); ++k) {
    if (k * 16 < a.key_width) {
      u32 m[4];
      load_matrices(m, stage + chunk_place<Of>(key_row, 2 * k + key_chunk));
      if constexpr (Of::kSharedQuery) {
        u32 q[4];
        load_matrices(q, shared_query + chunk_place<Of>(lane & 15, 2 * k + (lane >> 4)));
        multiply<T>(x[0], q, m[0], m[1]);
        multiply<T>(x[1], q, m[2], m[3]);
      } else {
        multiply<T>(x[0], w.query[k], m[0], m[1]);
        multiply<T>(x[1], w.query[k], m[2], m[3]);
      }
    }
  }
  // The scores; those of keys that a query must not see become -inf. Rows: i / 2; columns: 8 n + 2 (lane % 4) + i % 2.
  const int newest = s.length - a.queries;  // the newest key that the first query sees
  const bool all =
      present == 0xffffu && key + kWarpKeys - 1 <= newest && (a.window == 0 || key > s.length - 1 - a.window);
  float most[2] = {w.most[0], w.most[1]};
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * n + 2 * (lane & 3) + (i & 1), r = i >> 1;
      float z = scoring.of(x[n][i]);
      if (a.slopes != nullptr) z += w.slope[r] * static_cast<float>(key + column - w.position[r]);
      if (!all && !((present >> column & 1u) != 0 && is_seen(a, key + column, w.position[r]))) z = -infinity();
      x[n][i] = z;
      most[r] = fmaxf(most[r], z);
    }
  }
  float keep[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
  }
  const bool grows = most[0] > w.most[0] || most[1] > w.most[1];
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    base[r] = most[r] == -infinity() ? 0.0f : most[r];
    keep[r] = exp2_of(w.most[r] - base[r]);
    w.most[r] = most[r];
  }
  if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) w.sums[n][i] *= keep[i >> 1];
    }
    w.total[0] *= keep[0];
    w.total[1] *= keep[1];
  }
  u32 weights[4];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float pair[2] = {exp2_of(x[n][2 * r] - base[r]), exp2_of(x[n][2 * r + 1] - base[r])};
      w.total[r] += pair[0] + pair[1];
      weights[2 * n + r] = T::pack(pair);
    }
  }
  const u32 values = stage + kWarpKeys * Of::kRowBytes;
  if constexpr (Of::kNarrow) add_narrow_values<T>(a, values, weights, w);
  const int value_row = lane & 15, value_chunk = lane >> 4;
#pragma unroll
  for (int n = 0; n < (Of::kNarrow ? 0 : kWidth / 16); ++n) {
    if (n * 16 < a.value_width) {
      u32 m[4];
      load_transposed(m, values + chunk_place<Of>(value_row, 2 * n + value_chunk));
      multiply<T>(w.sums[2 * n], weights, m[0], m[1]);
      multiply<T>(w.sums[2 * n + 1], weights, m[2], m[3]);
    }
  }
}

#endif

}  // namespace decode_attention
}  // namespace precast
