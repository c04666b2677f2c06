// The rule by chunks of 64 tokens, with matrix instructions (the WY form of Yang and others, 2024, arXiv 2412.06464).
//
// Let G be the sums of a chunk's gates from its first token on, and A the products of its keys below the diagonal, each
// times beta of the row and exp(G_row - G_column). With T = (I + A)^-1, W = T (beta exp(G) K) and U = T (beta V), a
// chunk that begins with the state S gives
//
//   D = U - W S;    out = exp(G) Q S + P D;    S = exp(G_last) S + (exp(G_last - G) K)^T D
//
// with P the products of queries and keys up to the diagonal, times exp(G_row - G_column). W, U and P do not need the
// state: prepare_chunk computes them for all chunks at once. pass_chunks (states.cuh) takes 32 columns of the state of
// a head through all chunks. Between the two, matrices lie in memory as the threads of an instruction hold them: a
// vector of 16 bytes for each lane and each 16 x 16 elements, so that a warp copies its own and shares nothing.
#pragma once

#include "../gpu/matrix.cuh"
#include "step.cuh"

namespace precast {
namespace delta_rule {

#if PRECAST_ARCH >= 800

constexpr int kPitch = 68;   // floats in a row of the matrix that is inverted
constexpr int kBlock = 512;  // bytes of 16 x 16 elements
constexpr int kTiles = kChunk / 16;
constexpr float kLeastGate = -200.0f;  // 2^-200 is zero, and sums of it are numbers

// The chunk with this number: its sequence, and its tokens. The chunks of a sequence follow each other.
struct Chunk {
  i64 begin;
  int count;
};

DEVICE i64 first_chunk(const Rule& a, i64 begin, int sequence) {
  if (a.starts == nullptr) return static_cast<i64>(sequence) * ((a.length + kChunk - 1) / kChunk);
  return begin / kChunk + sequence;  // no two sequences share one, and none is beyond tokens / kChunk + sequences
}

DEVICE Chunk find_chunk(const Rule& a, i64 number) {
  int low = 0, high = a.sequences;
  while (high - low > 1) {  // the last sequence that does not begin behind this chunk
    const int middle = (low + high) / 2;
    if (first_chunk(a, span_of(a, middle).begin, middle) <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Span span = span_of(a, low);
  const i64 within = (number - first_chunk(a, span.begin, low)) * kChunk;
  const i64 left = within < 0 ? 0 : span.count - within;  // no sequence begins there if starts are wrong
  return {span.begin + within, left < 0 ? 0 : left < kChunk ? static_cast<int>(left) : kChunk};
}

// The offset of a 16-byte piece of a row in shared memory: the same piece of eight rows covers all banks.
template <int kRowBytes>
DEVICE u32 piece_place(int row, int piece) {
  return static_cast<u32>(row * kRowBytes + ((piece ^ (kRowBytes == 64 ? row >> 1 & 3 : row & 7)) << 4));
}

template <int kRowBytes>
DEVICE void copy_rows(const Heads& heads, const Chunk& chunk, int head, int pieces, u32 to) {
  constexpr int kPieces = kRowBytes / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool valid = row < chunk.count && piece < pieces;
    const char* from =
        valid ? heads.data + (chunk.begin + row) * heads.token + head * heads.head + piece * 16 : heads.data;
    copy_async(to + piece_place<kRowBytes>(row, piece), from, valid);
  }
}

DEVICE void put_block(char* to, i64 number, const u32 (&m)[4]) {
  const Vector v = {{m[0], m[1], m[2], m[3]}};
  store(to + number * kBlock + (threadIdx.x & 31) * 16, v);
}

// Two neighbouring tiles of sums as the elements of a 16 x 16 matrix.
template <class T>
DEVICE void packed(const float (&first)[4], const float (&second)[4], u32 (&m)[4]) {
  const float a[2] = {first[0], first[1]}, b[2] = {first[2], first[3]};
  const float c[2] = {second[0], second[1]}, d[2] = {second[2], second[3]};
  m[0] = T::pack(a);
  m[1] = T::pack(b);
  m[2] = T::pack(c);
  m[3] = T::pack(d);
}

// Numbers of a chunk's tokens.
struct Rows {
  float gate[kChunk];                              // the sum up to the token, times log2(e)
  float beta[kChunk], key[kChunk], query[kChunk];  // of the l2 norm
  float erased[kChunk];
};

// The sums of the gates, by one warp.
DEVICE void sum_gates(const Rule& a, const Chunk& chunk, int head, Rows& rows) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= 32) return;
  float x[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    const bool there = row < chunk.count;
    const i64 token = chunk.begin + row;
    x[i] = there && a.g.data != nullptr ? number(a.g.data + token * a.g.token + head * a.g.head, a.g.dtype) * kLog2E
                                        : 0.0f;
    x[i] = x[i] < kLeastGate ? kLeastGate : x[i];
    rows.beta[row] = !there ? 0.0f
                     : a.beta.data == nullptr
                         ? 1.0f
                         : number(a.beta.data + token * a.beta.token + head * a.beta.head, a.beta.dtype);
  }
  x[1] += x[0];
  float before = x[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, before, distance);
    if (lane >= distance) before += other;
  }
  before -= x[1];
  rows.gate[2 * lane] = before + x[0];
  rows.gate[2 * lane + 1] = before + x[1];
}

// The reciprocal norms of the rows of keys and queries, two threads for a row.
template <class T, int kKeyDim>
DEVICE void norms_of(const char* keys, const char* queries, bool norm, Rows& rows) {
  const int row = static_cast<int>(threadIdx.x) / 2, half = static_cast<int>(threadIdx.x) % 2;
  float of_key = 0.0f, of_query = 0.0f;
#pragma unroll 2
  for (int i = 0; i < kKeyDim / 16; ++i) {
    const u32 place = piece_place<kKeyDim * 2>(row, half * (kKeyDim / 16) + i);
    const Vector k = *reinterpret_cast<const Vector*>(keys + place),
                 q = *reinterpret_cast<const Vector*>(queries + place);
    for_elements<T>(k, [&](int, float x) { of_key += x * x; });
    for_elements<T>(q, [&](int, float x) { of_query += x * x; });
  }
  of_key += __shfl_xor_sync(0xffffffffu, of_key, 1);
  of_query += __shfl_xor_sync(0xffffffffu, of_query, 1);
  if (half == 0) {
    rows.key[row] = norm ? rsqrtf(of_key + kEps) : 1.0f;
    rows.query[row] = norm ? rsqrtf(of_query + kEps) : 1.0f;
  }
}

// Inverts I + A in place. A is below the diagonal of 64 x 64 elements; blocks of 16 above it are zero where they are
// read. The upper right quarter is overwritten.
DEVICE void invert(float* a) {
  float* const room = a + 32;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  {  // the diagonal blocks of 16: a lane has a column of the inverse
    float* mine = a + warp * 16 * (kPitch + 1);
    const int column = lane & 15;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
      for (int j = 0; j < i; ++j) sum -= mine[i * kPitch + j] * x[j];
      x[i] = sum;
    }
    __syncwarp();
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 16; ++i) mine[i * kPitch + column] = x[i];
    }
  }
  __syncthreads();
  {  // blocks of 32, two warps each: T10 = -T11 (A10 T00)
    float* mine = a + (warp >> 1) * 32 * (kPitch + 1);
    const int row = lane >> 1, column = (warp & 1) * 8 + (lane & 1) * 4;
    float* to = room + (warp >> 1) * 16 * kPitch;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const float factor = mine[(16 + row) * kPitch + k];
      const float4 v = *reinterpret_cast<const float4*>(mine + k * kPitch + column);
      sum[0] += factor * v.x;
      sum[1] += factor * v.y;
      sum[2] += factor * v.z;
      sum[3] += factor * v.w;
    }
    *reinterpret_cast<float4*>(to + row * kPitch + column) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    __syncthreads();
    float out[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const float factor = mine[(16 + row) * kPitch + 16 + k];
      const float4 v = *reinterpret_cast<const float4*>(to + k * kPitch + column);
      out[0] -= factor * v.x;
      out[1] -= factor * v.y;
      out[2] -= factor * v.z;
      out[3] -= factor * v.w;
    }
    *reinterpret_cast<float4*>(mine + (16 + row) * kPitch + column) = make_float4(out[0], out[1], out[2], out[3]);
  }
  __syncthreads();
  // The last block of 32: a warp has eight columns, a lane has a row.
  const int column = warp * 8;
  const float* lower = a + 32 * kPitch;
  float sum[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  const auto add = [&](const float* factors, const float* from) {
#pragma unroll
    for (int k = 0; k < 32; k += 4) {
      const float4 f = *reinterpret_cast<const float4*>(factors + k);
      const float factor[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 u = *reinterpret_cast<const float4*>(from + (k + i) * kPitch);
        const float4 v = *reinterpret_cast<const float4*>(from + (k + i) * kPitch + 4);
        sum[0] += factor[i] * u.x;
        sum[1] += factor[i] * u.y;
        sum[2] += factor[i] * u.z;
        sum[3] += factor[i] * u.w;
        sum[4] += factor[i] * v.x;
        sum[5] += factor[i] * v.y;
        sum[6] += factor[i] * v.z;
        sum[7] += factor[i] * v.w;
      }
    }
  };
  const auto put = [&](float* to, float sign) {
    *reinterpret_cast<float4*>(to) = make_float4(sign * sum[0], sign * sum[1], sign * sum[2], sign * sum[3]);
    *reinterpret_cast<float4*>(to + 4) = make_float4(sign * sum[4], sign * sum[5], sign * sum[6], sign * sum[7]);
  };
  add(lower + lane * kPitch, a + column);
  __syncthreads();  // all have read A
  put(room + lane * kPitch + column, 1.0f);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = 0.0f;
  add(lower + lane * kPitch + 32, room + column);
  put(a + (32 + lane) * kPitch + column, -1.0f);
  __syncthreads();
}

// 16 rows of T, times a factor for each column, times a matrix of 64 rows in shared memory.
template <class T, int kRowBytes, class Put>
DEVICE void multiply_inverse(const float* inverse, const float* factors, u32 matrix, int tiles, const Put& put_tile) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  u32 left[kTiles][4];
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // rows i % 2, columns 0 to 7 or 8 to 15
      const int row = warp * 16 + lane / 4 + 8 * (i & 1), column = k * 16 + 2 * (lane & 3) + 8 * (i >> 1);
      float pair[2] = {0.0f, 0.0f};
      if (k <= warp) {
        pair[0] = inverse[row * kPitch + column] * factors[column];
        pair[1] = inverse[row * kPitch + column + 1] * factors[column + 1];
      }
      left[k][i] = T::pack(pair);
    }
  }
#pragma unroll 2
  for (int n = 0; n < tiles; ++n) {
    float sum[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      if (k > warp) break;
      u32 m[4];
      load_transposed(m, matrix + piece_place<kRowBytes>(k * 16 + (lane & 15), 2 * n + (lane >> 4)));
      multiply<T>(sum[0], left[k], m[0], m[1]);
      multiply<T>(sum[1], left[k], m[2], m[3]);
    }
    put_tile(n, sum);
  }
}

template <class T, int kKeyDim>
DEVICE void prepare_chunk(const ChunkArgs& args) {
  constexpr int kRowBytes = kKeyDim * 2, kSteps = kKeyDim / 16, kValueBytes = 256;
  extern __shared__ __align__(128) char shared[];
  __shared__ Rows rows;
  const Rule& a = args.rule;
  char* const queries = shared + kChunk * kRowBytes;  // and later the values
  float* const matrix = reinterpret_cast<float*>(queries + kChunk * kValueBytes);
  const u32 at_keys = shared_address(shared), at_queries = shared_address(queries);
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const i64 number = blockIdx.x / static_cast<u32>(a.value_heads);
  const int head = static_cast<int>(blockIdx.x - number * a.value_heads), group = a.value_heads / a.key_heads;
  const int key_head = head / group;
  const Chunk chunk = find_chunk(a, number);
  if (chunk.count == 0) return;
  copy_rows<kRowBytes>(a.k, chunk, key_head, kSteps * 2, at_keys);
  copy_rows<kRowBytes>(a.q, chunk, key_head, kSteps * 2, at_queries);
  commit_copies();
  sum_gates(a, chunk, head, rows);
  wait_copies<0>();
  __syncthreads();
  norms_of<T, kKeyDim>(shared, queries, (a.flags & kL2Norm) != 0, rows);
  float with_keys[kTiles][2][4], with_queries[kTiles][2][4];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) with_keys[n][i / 4][i % 4] = with_queries[n][i / 4][i % 4] = 0.0f;
  }
  const bool first = head % group == 0;  // writes what the heads of a key head share
  const i64 of_keys = (number * a.key_heads + key_head) * (kTiles * kSteps);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    u32 key[4], query[4];
    const u32 place = piece_place<kRowBytes>(warp * 16 + (lane & 15), 2 * k + (lane >> 4));
    load_matrices(key, at_keys + place);
    load_matrices(query, at_queries + place);
    if (first) put_block(args.queries, of_keys + warp * kSteps + k, query);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (n > warp) break;
      u32 m[4];
      load_matrices(m,
                    at_keys + piece_place<kRowBytes>(n * 16 + (lane & 7) + (lane >> 4) * 8, 2 * k + (lane >> 3 & 1)));
      multiply<T>(with_keys[n][0], key, m[0], m[1]);
      multiply<T>(with_keys[n][1], key, m[2], m[3]);
      multiply<T>(with_queries[n][0], query, m[0], m[1]);
      multiply<T>(with_queries[n][1], query, m[2], m[3]);
    }
  }
  if (first) {
    for (int i = warp; i < kSteps * kTiles; i += kWarps) {  // keys by rows of the state
      u32 m[4];
      const int token = i % kTiles * 16 + (lane & 7) + (lane >> 4) * 8;
      load_transposed(m, at_keys + piece_place<kRowBytes>(token, i / kTiles * 2 + (lane >> 3 & 1)));
      put_block(args.keys, of_keys + i, m);
    }
  }
  __syncthreads();  // the norms; the queries have been read
  copy_rows<kValueBytes>(a.v, chunk, head, a.value_dim / 8, at_queries);
  commit_copies();
  const i64 of_head = number * a.value_heads + head;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp * 16 + lane / 4 + 8 * (i >> 1), column = n * 16 + j * 8 + 2 * (lane & 3) + (i & 1);
        const float factor = column <= row ? exp2_of(rows.gate[row] - rows.gate[column]) * rows.key[column] : 0.0f;
        with_queries[n][j][i] = column <= row ? with_queries[n][j][i] * factor * rows.query[row] * a.scale : 0.0f;
        with_keys[n][j][i] = column < row ? with_keys[n][j][i] * factor * rows.key[row] * rows.beta[row] : 0.0f;
      }
      if (n <= warp + 1) {
        float* to = matrix + (warp * 16 + lane / 4) * kPitch + n * 16 + j * 8 + 2 * (lane & 3);
        *reinterpret_cast<float2*>(to) = make_float2(with_keys[n][j][0], with_keys[n][j][1]);
        *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(with_keys[n][j][2], with_keys[n][j][3]);
      }
    }
    if (n <= warp) {
      u32 m[4];
      packed<T>(with_queries[n][0], with_queries[n][1], m);
      put_block(args.scores, of_head * (kTiles * kTiles) + warp * kTiles + n, m);
    }
  }
  const int thread = static_cast<int>(threadIdx.x);
  float* const factors = args.factors + of_head * kFactors;
  if (thread < kChunk) {
    const float decay = exp2_of(rows.gate[thread]);
    factors[thread] = decay * rows.query[thread] * a.scale;
    factors[kChunk + thread] = exp2_of(rows.gate[kChunk - 1] - rows.gate[thread]) * rows.key[thread];
    rows.erased[thread] = -decay * rows.beta[thread] * rows.key[thread];
    if (thread == kChunk - 1) factors[2 * kChunk] = decay;
  }
  __syncthreads();
  invert(matrix);
  multiply_inverse<T, kRowBytes>(matrix, rows.erased, at_keys, kSteps, [&](int n, const float (&sum)[2][4]) {
    u32 m[4];
    packed<T>(sum[0], sum[1], m);
    put_block(args.erased, of_head * (kTiles * kSteps) + warp * kSteps + n, m);
  });
  wait_copies<0>();
  __syncthreads();
  const int tiles = a.value_dim / 16;
  multiply_inverse<T, kValueBytes>(matrix, rows.beta, at_queries, tiles, [&](int n, const float (&sum)[2][4]) {
    u32 m[4];
    packed<T>(sum[0], sum[1], m);
    put_block(args.values, of_head * (kTiles * tiles) + warp * tiles + n, m);
  });
}

#else

template <class T, int kKeyDim>
DEVICE void prepare_chunk(const ChunkArgs&) {}  // host.cpp runs token by token there

#endif

}  // namespace delta_rule
}  // namespace precast
