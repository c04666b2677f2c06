// The rule token by token: a block of threads has 32 columns of the state of one head in registers.
//
// A thread has a vector of 16 bytes in each of several rows. One reduction over the rows serves a token: the products
// of the state with key and query, and those of key and query that the l2 norm needs, so raw keys and queries are
// enough.
#pragma once

#include "../gpu/device.cuh"
#include "args.h"

namespace precast {
namespace delta_rule {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr float kLog2E = 1.44269504f;

DEVICE float widen(u16 bits, int dtype) {
  return dtype == 1 ? Float16::widen(bits) : __uint_as_float(static_cast<u32>(bits) << 16);
}

// The number at `index`, of any dtype.
DEVICE float number(const char* p, int dtype, i64 index = 0) {
  if (dtype == 0) return reinterpret_cast<const float*>(p)[index];
  return widen(reinterpret_cast<const u16*>(p)[index], dtype);
}

DEVICE void put_number(char* p, int dtype, i64 index, float v) {
  if (dtype == 0) {
    reinterpret_cast<float*>(p)[index] = v;
  } else {
    reinterpret_cast<u16*>(p)[index] = static_cast<u16>(dtype == 1 ? Float16::narrow(v) : BFloat16::narrow(v));
  }
}

// Loads kCount adjacent numbers, of which `left` exist; the others are zero. kVectors: all exist or none, aligned.
template <int kCount, bool kVectors>
DEVICE void load_numbers(const char* p, int dtype, int left, float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = 0.0f;
  if (left <= 0) return;
  if constexpr (kVectors && kCount % 2 == 0) {
    if (dtype == 0) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        const float2 v = reinterpret_cast<const float2*>(p)[i / 2];
        x[i] = v.x;
        x[i + 1] = v.y;
      }
      return;
    }
    constexpr int kWords = kCount / 2;
    u32 word[kWords];
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 v = reinterpret_cast<const uint4*>(p)[i / 4];
        word[i] = v.x;
        word[i + 1] = v.y;
        word[i + 2] = v.z;
        word[i + 3] = v.w;
      }
    } else if constexpr (kWords == 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      word[0] = v.x;
      word[1] = v.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) word[i] = reinterpret_cast<const u32*>(p)[i];
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      x[2 * i] = widen(static_cast<u16>(word[i] & 0xffffu), dtype);
      x[2 * i + 1] = widen(static_cast<u16>(word[i] >> 16), dtype);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < left) x[i] = number(p, dtype, i);
    }
  }
}

template <class State, int kKeyDim>
struct Layout {
  static constexpr int kPer = State::kPerVector;             // columns of a thread
  static constexpr int kLanes = kBlockColumns / kPer;        // threads that share a row
  static constexpr int kRows = kKeyDim * kLanes / kThreads;  // of a thread
};

// What a thread needs of a token.
template <class Of>
struct Token {
  float k[Of::kRows], q[Of::kRows], v[Of::kPer];
  float gate, beta;
};

// The part of a state that a block has, and of it what a thread has.
struct Place {
  int sequence, head, key_head;
  int column, columns;  // the first of the thread, and how many exist
  int row, rows;
};

DEVICE i64 integer_at(const char* data, i64 at, bool is_long) {
  if (is_long) return reinterpret_cast<const i64*>(data)[at];
  return reinterpret_cast<const int*>(data)[at];
}

DEVICE i64 clamped(i64 x, i64 most) { return x < 0 ? 0 : x > most ? most : x; }

// The tokens of a sequence: the first one, and how many there are.
struct Span {
  i64 begin;
  int count;
};

DEVICE Span span_of(const Rule& a, int sequence) {
  if (a.starts == nullptr) return {static_cast<i64>(sequence) * a.length, a.length};
  const bool is_long = (a.flags & kLongStarts) != 0;
  const i64 begin = clamped(integer_at(a.starts, sequence * a.starts_stride, is_long), a.tokens);
  const i64 end = clamped(integer_at(a.starts, (sequence + 1) * a.starts_stride, is_long), a.tokens);
  return {begin, end > begin ? static_cast<int>(end - begin) : 0};
}

// A slot, or -1 for one that is not there.
DEVICE i64 slot_of(const Rule& a, int sequence, i64 number) {
  if (a.indices == nullptr) return sequence;
  const i64 slot =
      integer_at(a.indices, sequence * a.index_sequence + number * a.index_token, (a.flags & kLongIndices) != 0);
  return slot < a.slots ? slot : -1;
}

DEVICE i64 first_slot(const Rule& a, int sequence) {
  if (a.accepted == nullptr) return slot_of(a, sequence, 0);
  const i64 number = integer_at(a.accepted, sequence * a.accepted_stride, (a.flags & kLongAccepted) != 0) - 1;
  return number < 0 || number >= a.length ? -1 : slot_of(a, sequence, number);
}

template <class Of, bool kVectors>
DEVICE void load_token(const Rule& a, const Place& p, i64 token, Token<Of>& t) {
  const int bytes = a.k.dtype == 0 ? 4 : 2;
  load_numbers<Of::kRows, kVectors>(a.k.data + token * a.k.token + p.key_head * a.k.head + p.row * bytes, a.k.dtype,
                                    p.rows, t.k);
  load_numbers<Of::kRows, kVectors>(a.q.data + token * a.q.token + p.key_head * a.q.head + p.row * bytes, a.q.dtype,
                                    p.rows, t.q);
  load_numbers<Of::kPer, kVectors>(a.v.data + token * a.v.token + p.head * a.v.head + p.column * bytes, a.v.dtype,
                                   p.columns, t.v);
  const bool plain = a.g.data != nullptr && (a.flags & kKeyGates) == 0;
  t.gate = plain ? number(a.g.data + token * a.g.token + p.head * a.g.head, a.g.dtype) : 0.0f;
  t.beta =
      a.beta.data != nullptr ? number(a.beta.data + token * a.beta.token + p.head * a.beta.head, a.beta.dtype) : 1.0f;
}

constexpr int kAhead = 8;  // tokens

// Asks for a token's key and query, 128 bytes for each of a few threads.
DEVICE void prefetch_token(const Rule& a, const Place& p, i64 token) {
  const int thread = static_cast<int>(threadIdx.x), line = thread / 2 * 128;
  if (line >= a.key_dim * (a.k.dtype == 0 ? 4 : 2)) return;
  const Heads& heads = thread % 2 == 0 ? a.k : a.q;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(heads.data + token * heads.token + p.key_head * heads.head + line));
}

template <class State, int kRows, bool kVectors>
DEVICE void load_state(const States& from, i64 slot, const Place& p, float (&s)[kRows][State::kPerVector]) {
  constexpr int kPer = State::kPerVector;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int c = 0; c < kPer; ++c) s[i][c] = 0.0f;
  }
  if (from.data == nullptr || p.columns <= 0) return;
  const char* at = from.data + slot * from.slot + p.head * from.head + p.row * from.row + p.column * State::kBytes;
  if constexpr (kVectors) {
    Vector v[kRows];
    if (p.rows <= 0) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) v[i] = load(at + i * from.row);
#pragma unroll
    for (int i = 0; i < kRows; ++i) for_elements<State>(v[i], [&](int c, float x) { s[i][c] = x; });
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) {
        if (i < p.rows && c < p.columns) s[i][c] = State::load(at + i * from.row + c * State::kBytes);
      }
    }
  }
}

template <class State, int kRows, bool kVectors>
DEVICE void store_state(const States& to, i64 slot, const Place& p, const float (&s)[kRows][State::kPerVector]) {
  constexpr int kPer = State::kPerVector;
  if (slot < 0 || p.columns <= 0) return;
  char* at = to.data + slot * to.slot + p.head * to.head + p.row * to.row + p.column * State::kBytes;
  if constexpr (kVectors) {
    if (p.rows <= 0) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      Vector v;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float x[State::kPerWord];
#pragma unroll
        for (int e = 0; e < State::kPerWord; ++e) x[e] = s[i][w * State::kPerWord + e];
        v.word[w] = State::pack(x);
      }
      store(at + i * to.row, v);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) {
        if (i < p.rows && c < p.columns) State::store(at + i * to.row + c * State::kBytes, s[i][c]);
      }
    }
  }
}

DEVICE void put_result(const Rule& a, const Place& p, i64 token, int c, float v) {
  if (c < p.columns) put_number(a.out, a.out_dtype, (token * a.value_heads + p.head) * a.value_dim + p.column + c, v);
}

// The sum over the lanes that have other rows of the same columns.
template <int kLanes>
DEVICE float over_rows(float v) {
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

template <class State, int kKeyDim, bool kVectors>
DEVICE void run_tokens(const Rule& a) {
  using Of = Layout<State, kKeyDim>;
  constexpr int kPer = Of::kPer, kRows = Of::kRows, kLine = 2 * kBlockColumns + 4;
  __shared__ __align__(16) float room[2][kWarps][kLine];
  const int thread = static_cast<int>(threadIdx.x), warp = thread >> 5, lane = thread & (Of::kLanes - 1);
  const u32 tiles = (static_cast<u32>(a.value_dim) + kBlockColumns - 1) / kBlockColumns;
  const u32 unit = blockIdx.x / tiles;
  Place p;
  p.sequence = static_cast<int>(unit / static_cast<u32>(a.value_heads));
  p.head = static_cast<int>(unit) - p.sequence * a.value_heads;
  p.key_head = p.head / (a.value_heads / a.key_heads);
  p.column = static_cast<int>(blockIdx.x - unit * tiles) * kBlockColumns + lane * kPer;
  p.columns = a.value_dim - p.column;
  p.row = thread / Of::kLanes * kRows;
  p.rows = a.key_dim - p.row;
  const Span span = span_of(a, p.sequence);
  Token<Of> now;
  if (span.count > 0) load_token<Of, kVectors>(a, p, span.begin, now);
  const i64 slot = first_slot(a, p.sequence);
  if (slot < 0) {
    for (int t = 0; t < span.count && thread < Of::kLanes; ++t) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) put_result(a, p, span.begin + t, c, 0.0f);
    }
    return;
  }
  float s[kRows][kPer];
  load_state<State, kRows, kVectors>(a.from, slot, p, s);
  const bool norm = (a.flags & kL2Norm) != 0, each = (a.flags & kEachToken) != 0;
#pragma unroll 1
  for (int t = 0; t < span.count; ++t) {
    const i64 token = span.begin + t;
    if (t + kAhead < span.count) prefetch_token(a, p, token + kAhead);
    if ((a.flags & kKeyGates) != 0) {
      float gate[kRows];
      load_numbers<kRows, false>(a.g.data + token * a.g.token + p.head * a.g.head + p.row * (a.g.dtype == 0 ? 4 : 2),
                                 a.g.dtype, p.rows, gate);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float decay = exp2_of(gate[i] * kLog2E);
#pragma unroll
        for (int c = 0; c < kPer; ++c) s[i][c] *= decay;
      }
    } else {
      const float decay = exp2_of(now.gate * kLog2E);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int c = 0; c < kPer; ++c) s[i][c] *= decay;
      }
    }
    float with_key[kPer], with_query[kPer], products[3] = {0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < kPer; ++c) with_key[c] = with_query[c] = 0.0f;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      products[0] += now.k[i] * now.q[i];
      products[1] += now.k[i] * now.k[i];
      products[2] += now.q[i] * now.q[i];
#pragma unroll
      for (int c = 0; c < kPer; ++c) {
        with_key[c] += now.k[i] * s[i][c];
        with_query[c] += now.q[i] * s[i][c];
      }
    }
    float (&mine)[kWarps][kLine] = room[t & 1];
#pragma unroll
    for (int c = 0; c < kPer; ++c) {
      with_key[c] = over_rows<Of::kLanes>(with_key[c]);
      with_query[c] = over_rows<Of::kLanes>(with_query[c]);
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) products[i] = over_rows<Of::kLanes>(products[i]);
    if ((thread & 31) < Of::kLanes) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) {
        mine[warp][lane * kPer + c] = with_key[c];
        mine[warp][kBlockColumns + lane * kPer + c] = with_query[c];
      }
      if (lane == 0) {
#pragma unroll
        for (int i = 0; i < 3; ++i) mine[warp][2 * kBlockColumns + i] = products[i];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 3; ++i) products[i] = 0.0f;
#pragma unroll
    for (int c = 0; c < kPer; ++c) with_key[c] = with_query[c] = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) {
        with_key[c] += mine[w][lane * kPer + c];
        with_query[c] += mine[w][kBlockColumns + lane * kPer + c];
      }
#pragma unroll
      for (int i = 0; i < 3; ++i) products[i] += mine[w][2 * kBlockColumns + i];
    }
    const float of_key = norm ? rsqrtf(products[1] + kEps) : 1.0f, of_query = norm ? rsqrtf(products[2] + kEps) : 1.0f;
    const float both = products[0] * of_key * of_query;
    float delta[kPer];
#pragma unroll
    for (int c = 0; c < kPer; ++c) {
      delta[c] = now.beta * (now.v[c] - of_key * with_key[c]);
      if (thread < Of::kLanes) put_result(a, p, token, c, a.scale * (of_query * with_query[c] + both * delta[c]));
      delta[c] *= of_key;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) s[i][c] += now.k[i] * delta[c];
    }
    if (each) store_state<State, kRows, kVectors>(a.to, slot_of(a, p.sequence, t), p, s);
    if (t + 1 < span.count) load_token<Of, kVectors>(a, p, token + 1, now);
  }
  if (!each) store_state<State, kRows, kVectors>(a.to, slot, p, s);
}

}  // namespace delta_rule
}  // namespace precast
