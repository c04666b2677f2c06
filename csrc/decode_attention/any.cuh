// Attention in float32 for any types and alignment: caches of float32 and of 8 bits, GPUs before sm_80, unaligned
// views.
//
// A block copies 32 keys as floats to shared memory. Every warp computes their scores for its four rows, one key per
// lane. The values then replace the keys, and the lanes of a warp share the columns.
#pragma once

#include "plan.cuh"

namespace precast {
namespace decode_attention {

constexpr int kAnyWarps = 4, kAnyKeys = 32, kAnyRows = kRows / kAnyWarps, kMostWidth = 256;
constexpr int kAnyPitch = kMostWidth + 4;  // lanes reading four columns of adjacent rows use different banks

struct Float8E4M3 {
  static DEVICE float widen(u32 bits) {
    const u32 magnitude = bits & 0x7fu;
    const float value = __uint_as_float(magnitude << 20) * 0x1p120f;  // correct below the normal range as well
    return __uint_as_float((magnitude == 0x7fu ? 0x7fc00000u : __float_as_uint(value)) | (bits & 0x80u) << 24);
  }
  static DEVICE float load(const char* p) { return widen(*reinterpret_cast<const unsigned char*>(p)); }
};
struct Float8E5M2 {
  static DEVICE float widen(u32 bits) { return Float16::widen(static_cast<u16>(bits << 8)); }
  static DEVICE float load(const char* p) { return widen(*reinterpret_cast<const unsigned char*>(p)); }
};

DEVICE int cache_bytes(const Attention& a) { return a.cache_dtype == 0 ? 4 : a.cache_dtype >= kCacheE4M3 ? 1 : 2; }

// The start of each key's row in a step. Null: there is no such key.
struct Rows {
  const char* at[kAnyKeys];
};

// `place(i)` is the offset of element i from the start of its row.
template <class C, class Place>
DEVICE void bring_rows(const Rows& rows, int width, float* to, const Place& place) {
  constexpr int kEach = kAnyKeys / kAnyWarps;
  const int first = (static_cast<int>(threadIdx.x) >> 5) * kEach;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) & 31; i < width; i += 32) {
    const i64 offset = place(i);
    float v[kEach];  // loaded together, so that the memory's latency counts once
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const char* from = rows.at[first + k];
      v[k] = from != nullptr ? C::load(from + offset) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) to[(first + k) * kAnyPitch + i] = v[k];
  }
}

template <class Place>
DEVICE void bring(int type, const Rows& rows, int width, float* to, const Place& place) {
  if (type == kCacheFloat32) return bring_rows<Float32>(rows, width, to, place);
  if (type == kCacheFloat16) return bring_rows<Float16>(rows, width, to, place);
  if (type == kCacheBFloat16) return bring_rows<BFloat16>(rows, width, to, place);
  if (type == kCacheE4M3) return bring_rows<Float8E4M3>(rows, width, to, place);
  bring_rows<Float8E5M2>(rows, width, to, place);
}

DEVICE float query_at(const Attention& a, const char* at, int column) {
  if (a.dtype == 0) return Float32::load(at + column * 4);
  return a.dtype == 1 ? Float16::load(at + column * 2) : BFloat16::load(at + column * 2);
}

// A thread's state for its warp's four rows.
struct AnyRows {
  float sums[kAnyRows][kMostWidth / 32];
  float most[kAnyRows], total[kAnyRows];
};

DEVICE void find_rows(const DecodeArgs& args, const Segment& s, int key, Rows& keys, Rows& values) {
  const Attention& a = args.call;
  const int me = static_cast<int>(threadIdx.x), mine = key + me;
  if (me >= kAnyKeys) return;
  keys.at[me] = values.at[me] = nullptr;
  if (mine < s.oldest || mine >= s.length) return;
  int within;
  const i64 block = block_at(args, s.sequence, mine, &within);
  if (block < 0) return;
  keys.at[me] = a.keys + block * a.key_block + within * a.key_position + s.kv_head * a.key_head;
  values.at[me] = a.values + block * a.value_block + within * a.value_position + s.kv_head * a.value_head;
}

// Applies the lane's key to the warp's rows: replaces scores with weights and rescales the sums to the new maximum.
DEVICE void weigh_keys(const Attention& a, const Segment& s, const Scoring& scoring, int key, bool present,
                       const float* keys, const float* query, float (&weight)[kAnyRows], AnyRows& w) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  float product[kAnyRows] = {};
#pragma unroll 2
  for (int i = 0; i < a.key_width; i += 4) {
    const float4 k = *reinterpret_cast<const float4*>(keys + lane * kAnyPitch + i);
#pragma unroll
    for (int r = 0; r < kAnyRows; ++r) {
      const float4 q = *reinterpret_cast<const float4*>(query + (warp * kAnyRows + r) * kMostWidth + i);
      product[r] = fmaf(q.w, k.w, fmaf(q.z, k.z, fmaf(q.y, k.y, fmaf(q.x, k.x, product[r]))));
    }
  }
#pragma unroll
  for (int r = 0; r < kAnyRows; ++r) {
    const Row row = row_of(a, s, lesser(warp * kAnyRows + r, s.rows - 1));
    float z = scoring.of(product[r]);
    if (a.slopes != nullptr) z += a.slopes[row.head] * kLog2E * static_cast<float>(key + lane - row.position);
    if (!present || !is_seen(a, key + lane, row.position)) z = -infinity();
    float most = z;
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
    }
    most = fmaxf(most, w.most[r]);
    const float base = most == -infinity() ? 0.0f : most, keep = exp2_of(w.most[r] - base);
    weight[r] = exp2_of(z - base);
    w.most[r] = most;
    w.total[r] = w.total[r] * keep + weight[r];
#pragma unroll
    for (int i = 0; i < kMostWidth / 32; ++i) w.sums[r][i] *= keep;
  }
}

DEVICE void add_values(const Attention& a, const float* values, const float (&weight)[kAnyRows], AnyRows& w) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll 1
  for (int k = 0; k < kAnyKeys; ++k) {
    float one[kAnyRows];
#pragma unroll
    for (int r = 0; r < kAnyRows; ++r) one[r] = __shfl_sync(0xffffffffu, weight[r], k);
#pragma unroll
    for (int i = 0; i < kMostWidth / 32; ++i) {
      if (i * 32 >= a.value_width) break;
      const float v = values[k * kAnyPitch + i * 32 + lane];  // beyond the width: inside the row, and not stored
#pragma unroll
      for (int r = 0; r < kAnyRows; ++r) w.sums[r][i] = fmaf(one[r], v, w.sums[r][i]);
    }
  }
}

DEVICE void end_any(const DecodeArgs& args, const Segment& s, AnyRows& w) {
  const Attention& a = args.call;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
#pragma unroll
  for (int r = 0; r < kAnyRows; ++r) {
    const float total = warp_sum(w.total[r]);
    const int number = warp * kAnyRows + r;
    if (number >= s.rows) continue;
    const Row row = row_of(a, s, number);
    const i64 to = result_row(a, s.sequence, row);
    const Closing closing = close_row(a, s.kv_head, row.head, w.most[r], total);
    float* part = part_sums(args, s.slot, number);
#pragma unroll
    for (int i = 0; i < kMostWidth / 32; ++i) {
      const int column = i * 32 + lane;
      if (column >= a.value_width) continue;
      const float v = w.sums[r][i];
      if (!s.whole) {
        part[column] = v;
        continue;
      }
      char* const at = a.out + (to * a.value_width + column) * (a.dtype == 0 ? 4 : 2);
      if (a.dtype == 0) {
        Float32::store(at, v * closing.factor);
      } else if (a.dtype == 1) {
        Float16::store(at, v * closing.factor);
      } else {
        BFloat16::store(at, v * closing.factor);
      }
    }
    if (lane == 0) {
      if (s.whole) {
        a.lse[to] = closing.lse;
      } else {
        part[a.value_width] = w.most[r];
        part[a.value_width + 1] = total;
      }
    }
  }
}

DEVICE void decode_any_types(const DecodeArgs& args) {
  extern __shared__ __align__(16) char room[];
  __shared__ i64 sums[kAnyWarps];
  __shared__ Start found;
  __shared__ Rows keys, values;
  const Attention& a = args.call;
  float* const tile = reinterpret_cast<float*>(room);     // kAnyKeys rows of kAnyPitch floats
  float* const query = tile + kAnyKeys * kAnyPitch + 32;  // kRows rows of kMostWidth floats
  const Start start = find_start(args, sums, &found);
  const int width = a.key_width, piece = a.key_piece_width, bytes = cache_bytes(a);
  const i64 piece_bytes = a.key_piece;
  for_segments(args, start, [&](const Segment& s) {
    const Scoring scoring(a, s.kv_head);
    for (int i = static_cast<int>(threadIdx.x); i < kRows * width; i += kAnyWarps * 32) {
      const int r = i / width, column = i - r * width;
      const Row row = row_of(a, s, lesser(r, s.rows - 1));
      query[r * kMostWidth + column] = query_at(
          a, a.query + s.sequence * a.query_sequence + row.query * a.query_token + row.head * a.query_head, column);
    }
    const bool has_rows = (static_cast<int>(threadIdx.x) >> 5) * kAnyRows < s.rows;
    AnyRows w;
#pragma unroll
    for (int r = 0; r < kAnyRows; ++r) {
      w.most[r] = -infinity();
      w.total[r] = 0.0f;
#pragma unroll
      for (int i = 0; i < kMostWidth / 32; ++i) w.sums[r][i] = 0.0f;
    }
    for (int step = 0; step < s.tiles * (kTile / kAnyKeys); ++step) {
      const int key = s.first_tile * kTile + step * kAnyKeys;
      __syncthreads();
      find_rows(args, s, key, keys, values);
      __syncthreads();
      bring(a.cache_dtype, keys, width, tile, [&](int i) {
        const int number = i / piece;
        return number * piece_bytes + static_cast<i64>(i - number * piece) * bytes;
      });
      __syncthreads();
      float weight[kAnyRows] = {};
      const bool present = keys.at[threadIdx.x & 31] != nullptr;
      if (has_rows) weigh_keys(a, s, scoring, key, present, tile, query, weight, w);
      __syncthreads();
      bring(a.cache_dtype, values, a.value_width, tile, [&](int i) { return i * a.value_piece; });
      __syncthreads();
      if (has_rows) add_values(a, tile, weight, w);
    }
    end_any(args, s, w);
  });
}

}  // namespace decode_attention
}  // namespace precast
