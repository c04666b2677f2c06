// The second launch of the rule by chunks: 32 columns of the state of a head, through all chunks of its sequence.
#pragma once

#include "chunk.cuh"

namespace precast {
namespace delta_rule {

#if PRECAST_ARCH >= 800

// The order of a warp's blocks in a stage: corrected keys, queries, scores, values, keys.
template <int kKeyDim>
struct Stage {
  static constexpr int kSteps = kKeyDim / 16, kQueries = kSteps, kScores = 2 * kSteps, kValues = kScores + kTiles,
                       kKeys = kValues + 2, kBlocks = kKeys + kSteps;
};

// Starts the copies of a chunk. A lane copies what it will read itself, so that waiting for them needs no barrier.
template <int kKeyDim>
DEVICE void begin_stage(const ChunkArgs& args, i64 number, int head, int key_head, int column, u32 stage) {
  using Of = Stage<kKeyDim>;
  const Rule& a = args.rule;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int tiles = a.value_dim / 16;
  const i64 of_keys = (number * a.key_heads + key_head) * (kTiles * Of::kSteps),
            of_head = number * a.value_heads + head;
  const u32 to = stage + lane * 16;
  const auto copy = [&](int place, const char* from, i64 block, int count) {
#pragma unroll 8
    for (int i = 0; i < count; ++i)
      copy_async(to + (place + i) * kBlock, from + (block + i) * kBlock + lane * 16, true);
  };
  copy(0, args.erased, (of_head * kTiles + warp) * Of::kSteps, Of::kSteps);
  copy(Of::kQueries, args.queries, of_keys + warp * Of::kSteps, Of::kSteps);
  copy(Of::kScores, args.scores, (of_head * kTiles + warp) * kTiles, warp + 1);
  copy(Of::kValues, args.values, (of_head * kTiles + warp) * tiles + column / 16, 2);
  copy(Of::kKeys, args.keys, of_keys + warp * Of::kSteps, Of::kSteps);
}

DEVICE void read_block(u32 (&m)[4], const char* stage, int number) {
  const Vector v = *reinterpret_cast<const Vector*>(stage + number * kBlock + (threadIdx.x & 31) * 16);
#pragma unroll
  for (int i = 0; i < 4; ++i) m[i] = v.word[i];
}

// Writes 16 x 8 sums to a matrix of 32 columns.
template <class T>
DEVICE void put_tile(char* to, int row, int n, const float (&sum)[4], float low, float high) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const float first[2] = {sum[0] * low, sum[1] * low}, second[2] = {sum[2] * high, sum[3] * high};
  *reinterpret_cast<u32*>(to + piece_place<64>(row + lane / 4, n) + 4 * (lane & 3)) = T::pack(first);
  *reinterpret_cast<u32*>(to + piece_place<64>(row + lane / 4 + 8, n) + 4 * (lane & 3)) = T::pack(second);
}

template <class T, int kKeyDim>
DEVICE void pass_chunks(const ChunkArgs& args) {
  using Of = Stage<kKeyDim>;
  constexpr int kOwn = kKeyDim / 64, kColumns = kBlockColumns / 8;  // tiles of the state: rows of a warp, and columns
  constexpr u32 kStageBytes = Of::kBlocks * kBlock * kWarps;
  extern __shared__ __align__(128) char shared[];
  const Rule& a = args.rule;
  char* const state = shared;
  char* const corrections = state + kKeyDim * 64;
  char* const decayed = corrections + kChunk * 64;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  char* const mine = decayed + kChunk * 64 + warp * Of::kBlocks * kBlock;
  const u32 tiles = static_cast<u32>(a.value_dim) / kBlockColumns, unit = blockIdx.x / tiles;
  const int column = static_cast<int>(blockIdx.x - unit * tiles) * kBlockColumns;
  const int sequence = static_cast<int>(unit / static_cast<u32>(a.value_heads));
  const int head = static_cast<int>(unit) - sequence * a.value_heads, key_head = head / (a.value_heads / a.key_heads);
  const Span span = span_of(a, sequence);
  const i64 first = first_chunk(a, span.begin, sequence);
  const int chunks = (span.count + kChunk - 1) / kChunk;
  const int row = lane / 4, pair = 2 * (lane & 3);  // of this thread in a tile
  for (int i = 0; i < args.stages - 1; ++i) {
    if (i < chunks)
      begin_stage<kKeyDim>(args, first + i, head, key_head, column, shared_address(mine) + i * kStageBytes);
    commit_copies();
  }
  float s[kOwn][kColumns][4];
#pragma unroll
  for (int m = 0; m < kOwn; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const i64 at = (warp * kOwn + m) * 16 + row + 8 * (i >> 1);
        s[m][n][i] = a.from.data == nullptr
                         ? 0.0f
                         : number(a.from.data + sequence * a.from.slot + head * a.from.head + at * a.from.row,
                                  a.state_dtype, column + n * 8 + pair + (i & 1));
      }
      put_tile<T>(state, (warp * kOwn + m) * 16, n, s[m][n], 1.0f, 1.0f);
    }
  }
  __syncthreads();
  const u32 at_state = shared_address(state), at_corrections = shared_address(corrections),
            at_decayed = shared_address(decayed);
  int stage = 0;
  float factor[5];  // of this thread's rows: of queries, of values, and of the state
  const auto load_factors = [&](int chunk) {
    const float* from = args.factors + ((first + chunk) * a.value_heads + head) * kFactors;
#pragma unroll
    for (int i = 0; i < 4; ++i) factor[i] = from[(i >> 1) * kChunk + warp * 16 + row + 8 * (i & 1)];
    factor[4] = from[2 * kChunk];
  };
  if (chunks > 0) load_factors(0);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int ahead = chunk + args.stages - 1, free = stage == 0 ? args.stages - 1 : stage - 1;
    if (ahead < chunks) {
      begin_stage<kKeyDim>(args, first + ahead, head, key_head, column, shared_address(mine) + free * kStageBytes);
    }
    commit_copies();
    if (args.stages == 3) {
      wait_copies<2>();
    } else if (args.stages == 2) {
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    const char* const here = mine + stage * kStageBytes;
    stage = stage + 1 == args.stages ? 0 : stage + 1;
    const float of_query[2] = {factor[0], factor[1]}, of_value[2] = {factor[2], factor[3]}, decay = factor[4];
    if (chunk + 1 < chunks) load_factors(chunk + 1);
    float d[kColumns][4], out[kColumns][4];
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      u32 m[4];
      read_block(m, here, Of::kValues + n / 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float v[2];
        T::unpack(m[i], v);
        d[n + (i >> 1)][(i & 1) * 2] = v[0];
        d[n + (i >> 1)][(i & 1) * 2 + 1] = v[1];
        out[n + (i >> 1)][(i & 1) * 2] = out[n + (i >> 1)][(i & 1) * 2 + 1] = 0.0f;
      }
    }
#pragma unroll
    for (int k = 0; k < Of::kSteps; ++k) {
      u32 erased[4], query[4];
      read_block(erased, here, k);
      read_block(query, here, Of::kQueries + k);
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        u32 m[4];
        load_transposed(m, at_state + piece_place<64>(k * 16 + (lane & 15), n + (lane >> 4)));
        multiply<T>(d[n], erased, m[0], m[1]);
        multiply<T>(d[n + 1], erased, m[2], m[3]);
        multiply<T>(out[n], query, m[0], m[1]);
        multiply<T>(out[n + 1], query, m[2], m[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      put_tile<T>(corrections, warp * 16, n, d[n], 1.0f, 1.0f);
      put_tile<T>(decayed, warp * 16, n, d[n], of_value[0], of_value[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= of_query[i >> 1];
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kOwn; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] *= decay;
      }
    }
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      u32 score[4], key[kOwn][4];
      if (k <= warp) read_block(score, here, Of::kScores + k);
#pragma unroll
      for (int m = 0; m < kOwn; ++m) read_block(key[m], here, Of::kKeys + m * kTiles + k);
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        u32 b[4];
        const u32 place = piece_place<64>(k * 16 + (lane & 15), n + (lane >> 4));
        load_transposed(b, at_decayed + place);
#pragma unroll
        for (int m = 0; m < kOwn; ++m) {
          multiply<T>(s[m][n], key[m], b[0], b[1]);
          multiply<T>(s[m][n + 1], key[m], b[2], b[3]);
        }
        if (k <= warp) {
          load_transposed(b, at_corrections + place);
          multiply<T>(out[n], score, b[0], b[1]);
          multiply<T>(out[n + 1], score, b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kOwn; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) put_tile<T>(state, (warp * kOwn + m) * 16, n, s[m][n], 1.0f, 1.0f);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = chunk * kChunk + warp * 16 + row + 8 * i;
      if (token >= span.count) continue;
      char* to = a.out + (((span.begin + token) * a.value_heads + head) * a.value_dim + column + pair) * 2;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const float two[2] = {out[n][2 * i], out[n][2 * i + 1]};
        *reinterpret_cast<u32*>(to + n * 16) = T::pack(two);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kOwn; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const i64 at = (warp * kOwn + m) * 16 + row + 8 * (i >> 1);
        char* to = a.to.data + sequence * a.to.slot + head * a.to.head + at * a.to.row;
        put_number(to, a.state_dtype, column + n * 8 + pair + (i & 1), s[m][n][i]);
      }
    }
  }
}

#else

template <class T, int kKeyDim>
DEVICE void pass_chunks(const ChunkArgs&) {}  // host.cpp runs token by token there

#endif

}  // namespace delta_rule
}  // namespace precast
