// Attention with matrix instructions, for queries of float16 and bfloat16 from sm_80 on. Caches have the dtype of the
// query, or 8 bits: these are copied as they are and become the query's dtype, exactly, on their way to a matrix.
//
// A warp takes 16 of the 64 keys of each tile and has its own softmax, so warps wait only for their own copies:
// cp.async copies keys and values several tiles ahead into the warp's stages. A unit's rows are the 16 rows of the
// matrix instruction, even if it has fewer: memory is the bottleneck. At the end of a segment the warps' sums are
// merged in shared memory.
#pragma once

#include "any.cuh"

namespace precast {
namespace decode_attention {

// The parameters for heads of up to kMost elements of kBytes bytes. The shared memory, kStages * kWarps * 32 *
// kRowBytes plus that of the queries, is in a table of host.cpp.
template <int kMost, int kBytes = 2>
struct Class {
  static constexpr int kWidth = kMost, kRowBytes = kMost * kBytes;
  static constexpr bool kNarrow = kBytes == 1;
  static constexpr int kWarps = kWidth == 256 ? 2 : 4;
  static constexpr int kStages = kRowBytes == 128 ? 4 : 2;
  static constexpr int kPerChunk = 16 / kBytes;        // elements in 16 bytes
  static constexpr bool kSharedQuery = kWidth == 256;  // there are too few registers for it
  static_assert(!(kNarrow && kSharedQuery), "shared queries are in the order of 16-bit keys");
};

#if PRECAST_ARCH >= 800

DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Copies 16 bytes from global to shared memory. If not `valid`, stores zeros and reads nothing.
DEVICE void copy_async(u32 to, const char* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

DEVICE void load_matrices(u32 (&m)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
DEVICE void load_transposed(u32 (&m)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// c += a b, 16 x 8 x 16.
template <class T>
DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <>
DEVICE void multiply<Float16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
DEVICE void multiply<BFloat16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

constexpr int kWarpKeys = 16;

// The keys that a warp takes at step `step` of a segment. With two warps, a tile takes two steps.
template <class Of>
DEVICE int key_at(const Segment& s, int step, int warp) {
  return s.first_tile * kTile + (step * Of::kWarps + warp) * kWarpKeys;
}

// The place of a 16-byte chunk of a key or value in a stage. Each has a row, whose chunks are permuted so that a column
// of eight rows covers all banks.
template <class Of>
DEVICE u32 chunk_place(int row, int chunk) {
  return static_cast<u32>(row * Of::kRowBytes + ((chunk ^ (row & 7)) << 4));
}

// Starts the copies of the 16 keys from `key` on, and sets the bits of the keys that exist.
template <class Of>
DEVICE void begin_copies(const DecodeArgs& args, const Segment& s, int key, u32 stage, u32* present) {
  const Attention& a = args.call;
  const int lane = static_cast<int>(threadIdx.x) & 31, row = lane & 15, mine = key + row;
  const char *keys = a.keys, *values = a.values;
  bool valid = mine >= s.oldest && mine < s.length;
  if (valid) {
    int within;
    const i64 block = block_at(args, s.sequence, mine, &within);
    valid = block >= 0;
    if (valid) {
      keys += block * a.key_block + within * a.key_position + s.kv_head * a.key_head;
      values += block * a.value_block + within * a.value_position + s.kv_head * a.value_head;
    }
  }
  const u32 there = __ballot_sync(0xffffffffu, valid) & 0xffffu;
  if (lane == 0) *present = there;
  constexpr int kPerRow = Of::kRowBytes / 16, kRowsAtOnce = 32 / kPerRow;
  const int key_chunks = a.key_width / Of::kPerChunk, value_chunks = a.value_width / Of::kPerChunk;
  const u32 value_stage = stage + kWarpKeys * Of::kRowBytes;
  const int chunk = lane % kPerRow;
  const bool pieces = a.key_piece_width != a.key_width;
  if (pieces) {  // neighbours in memory are the same chunk of consecutive keys
    for (int c = lane >> 4; c < key_chunks; c += 2) {
      const u32 piece = quotient(static_cast<u32>(c), args.pieces);
      const int within = c - static_cast<int>(piece * args.pieces.divisor);
      copy_async(stage + chunk_place<Of>(row, c), valid ? keys + piece * a.key_piece + within * 16 : a.keys, valid);
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpKeys / kRowsAtOnce; ++i) {
    const int other = i * kRowsAtOnce + lane / kPerRow;
    const char* from = reinterpret_cast<const char*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(keys), other));
    const bool is_there = (there >> other & 1u) != 0;
    if (!pieces && chunk < key_chunks) {
      copy_async(stage + chunk_place<Of>(other, chunk), is_there ? from + chunk * 16 : a.keys, is_there);
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpKeys / kRowsAtOnce; ++i) {
    const int other = i * kRowsAtOnce + lane / kPerRow;
    const char* from = reinterpret_cast<const char*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(values), other));
    const bool is_there = (there >> other & 1u) != 0;
    if (chunk < value_chunks) {
      copy_async(value_stage + chunk_place<Of>(other, chunk), is_there ? from + chunk * 16 : a.values, is_there);
    }
  }
}

// A warp's rows. Each thread has two of the 16: `lane / 4` and the one eight rows below.
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

// In 8 bits, a thread's share of 16 bytes of a key are four adjacent elements, where in 16 bits they are two pairs
// eight elements apart. The order of a product's terms is free, so the query takes the order of the keys.
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

// A pair of float16, each the value of 8 bits, as a pair of T.
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

// Four adjacent elements of 8 bits as two pairs of T.
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

// Adds the products of 16 keys of 8 bits with the warp's rows to `x`.
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

// Adds 16 values of 8 bits with their weights to the warp's sums. Of each 16 columns, the even ones come first in
// `sums`, then the odd ones: a transposed load moves two adjacent columns at once.
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

// One step of a warp, for the 16 keys in `stage`.
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
  // The scores, and which of them count. Rows: i / 2; columns: 8 n + 2 (lane % 4) + i % 2.
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

// ---- clusters ----

// A block's part of its unit, behind the warps' sums in shared memory: per row the sums, the maximum and the sum of
// weights.
template <class Of>
struct OwnPart {
  static constexpr int kPitch = Of::kWidth + 4, kBegin = Of::kWarps * kRows * (Of::kWidth + 8);  // floats
  static_assert((kBegin + kRows * kPitch) * 4 <= Of::kStages * Of::kWarps * 2 * kWarpKeys * Of::kRowBytes, "fits");
};

DEVICE void wait_for_cluster() {
#if PRECAST_ARCH >= 900
  asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Reads shared memory of a block of the cluster: four floats.
DEVICE float4 read_from(const float* p, int rank) {
#if PRECAST_ARCH >= 900
  float4 v;
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
#else
  return *reinterpret_cast<const float4*>(p);
#endif
}

// Merges the parts of a cluster's blocks in their order. Warps have rows. All threads of the cluster call this.
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
    float4 stats = make_float4(-infinity(), 0.0f, 0.0f, 0.0f);  // of the block with the number of this lane
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
        if (keep[r] == 0.0f) continue;  // such a part may have no sums
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
  wait_for_cluster();  // another block may still read this one's part
}

// Merges the warps' rows and writes them to the result or to a part. No copy to `room` (shared memory) may be in
// flight.
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
