// The rule token by token: a block of threads has some columns of the state of one head in registers.
//
// Eight threads share a row, with a vector of 16 bytes each; a thread has four or eight rows. One reduction over the
// rows serves a token: the products of the state with key and query, and those of key and query that the l2 norm needs,
// so raw keys and queries are enough.
#pragma once

#include "../gpu/early.cuh"
#include "args.h"

namespace precast {
namespace delta_rule {

constexpr int kThreads = 128, kWarps = kThreads / 32;  // of the kernels by chunks
constexpr int kRowThreads = 8;                         // that share a row of the state
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
  if constexpr (kVectors) {
    if (dtype == 0) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 v = reinterpret_cast<const float4*>(p)[i / 4];
        x[i] = v.x;
        x[i + 1] = v.y;
        x[i + 2] = v.z;
        x[i + 3] = v.w;
      }
      return;
    }
    constexpr int kWords = kCount / 2;
    u32 word[kWords];
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const Vector v = reinterpret_cast<const Vector*>(p)[i / 4];
#pragma unroll
        for (int k = 0; k < 4; ++k) word[i + k] = v.word[k];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 2) {
        const u64 both = reinterpret_cast<const u64*>(p)[i / 2];
        word[i] = static_cast<u32>(both);
        word[i + 1] = static_cast<u32>(both >> 32);
      }
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

template <class State, int kKeyDim, int kThreads>
struct Layout {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPer = State::kPerVector;                  // columns of a thread
  static constexpr int kColumns = kRowThreads * kPer;             // of a block
  static constexpr int kRows = kKeyDim * kRowThreads / kThreads;  // of a thread
  static constexpr int kLine = 2 * kColumns + 4;                  // sums of a warp
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

// Where a thread reads and writes of a token, and the steps to the next one.
struct Cursor {
  const char *k, *q, *v, *g, *beta;
  char* out;
};

DEVICE Cursor cursor_of(const Rule& a, const Place& p, i64 token) {
  const int bytes = a.k.dtype == 0 ? 4 : 2;
  Cursor at;
  at.k = a.k.data + token * a.k.token + p.key_head * a.k.head + p.row * bytes;
  at.q = a.q.data + token * a.q.token + p.key_head * a.q.head + p.row * bytes;
  at.v = a.v.data + token * a.v.token + p.head * a.v.head + p.column * bytes;
  at.g = a.g.data == nullptr ? nullptr : a.g.data + token * a.g.token + p.head * a.g.head;
  at.beta = a.beta.data == nullptr ? nullptr : a.beta.data + token * a.beta.token + p.head * a.beta.head;
  at.out = a.out + ((token * a.value_heads + p.head) * a.value_dim + p.column) * bytes;
  return at;
}

DEVICE void advance(const Rule& a, Cursor& at) {
  at.k += a.k.token;
  at.q += a.q.token;
  at.v += a.v.token;
  if (at.g != nullptr) at.g += a.g.token;
  if (at.beta != nullptr) at.beta += a.beta.token;
  at.out += static_cast<i64>(a.value_heads) * a.value_dim * (a.k.dtype == 0 ? 4 : 2);
}

template <class Of, bool kVectors>
DEVICE void load_token(const Rule& a, const Place& p, const Cursor& at, Token<Of>& t) {
  load_numbers<Of::kRows, kVectors>(at.k, a.k.dtype, p.rows, t.k);
  load_numbers<Of::kRows, kVectors>(at.q, a.k.dtype, p.rows, t.q);
  load_numbers<Of::kPer, kVectors>(at.v, a.k.dtype, p.columns, t.v);
  t.gate = at.g != nullptr && (a.flags & kKeyGates) == 0 ? number(at.g, a.g.dtype) : 0.0f;
  t.beta = at.beta != nullptr ? number(at.beta, a.beta.dtype) : 1.0f;
}

constexpr int kAhead = 8;  // tokens

// Asks for a token of the block, 128 bytes for each of a few threads.
DEVICE void prefetch_token(const Rule& a, const Place& p, const Cursor& at, i64 ahead) {
  const int thread = static_cast<int>(threadIdx.x), line = thread / 4 * 128, which = thread % 4;
  const int bytes = a.k.dtype == 0 ? 4 : 2;
  const char* from = nullptr;
  if (which < 2) {
    if (line < a.key_dim * bytes) {
      from = (which == 0 ? at.k : at.q) + ahead * (which == 0 ? a.k.token : a.q.token) - p.row * bytes + line;
    }
  } else if (line == 0) {
    from = which == 2 ? at.v + ahead * a.v.token : at.g == nullptr ? nullptr : at.g + ahead * a.g.token;
  }
  if (from == nullptr) return;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
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

// Stores kCount adjacent numbers, of which `left` exist.
template <int kCount, bool kVectors>
DEVICE void store_numbers(char* p, int dtype, int left, const float (&x)[kCount]) {
  if constexpr (kVectors) {
    if (left <= 0) return;
    if (dtype == 0) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        reinterpret_cast<float4*>(p)[i / 4] = {x[i], x[i + 1], x[i + 2], x[i + 3]};
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float first[2] = {x[i], x[i + 1]}, second[2] = {x[i + 2], x[i + 3]};
      const u64 low = dtype == 1 ? Float16::pack(first) : BFloat16::pack(first);
      const u64 high = dtype == 1 ? Float16::pack(second) : BFloat16::pack(second);
      reinterpret_cast<u64*>(p)[i / 4] = low | high << 32;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < left) put_number(p, dtype, i, x[i]);
    }
  }
}

// The sums over the rows of a warp. Of 2 kPer sums, a thread gets a quarter: of the first half or the second, by bit 3
// of its number, and of that by bit 4.
template <int kPer>
DEVICE void scatter_sums(const float (&first)[kPer], const float (&second)[kPer], float (&mine)[kPer / 2]) {
  const bool upper = (threadIdx.x & 8) != 0, last = (threadIdx.x & 16) != 0;
  float half[kPer];
#pragma unroll
  for (int c = 0; c < kPer; ++c) {
    half[c] = (upper ? second[c] : first[c]) + __shfl_xor_sync(0xffffffffu, upper ? first[c] : second[c], 8);
  }
#pragma unroll
  for (int c = 0; c < kPer / 2; ++c) {
    const float kept = last ? half[kPer / 2 + c] : half[c], sent = last ? half[c] : half[kPer / 2 + c];
    mine[c] = kept + __shfl_xor_sync(0xffffffffu, sent, 16);
  }
}

// The sums of the warps of a block, for this thread's columns.
template <class Of>
DEVICE void add_warps(const float* from, float (&sum)[Of::kPer]) {
#pragma unroll
  for (int c = 0; c < Of::kPer; ++c) sum[c] = 0.0f;
#pragma unroll 4
  for (int w = 0; w < Of::kWarps; ++w) {
#pragma unroll
    for (int c = 0; c < Of::kPer; c += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + w * Of::kLine + c);
      sum[c] += v.x;
      sum[c + 1] += v.y;
      sum[c + 2] += v.z;
      sum[c + 3] += v.w;
    }
  }
}

template <int kPer>
DEVICE void decay_row(float (&row)[kPer], float decay) {
#pragma unroll
  for (int c = 0; c < kPer; ++c) row[c] *= decay;
}

template <class State, int kKeyDim, int kThreads, bool kVectors = true>
DEVICE void run_tokens(const Rule& a) {
  using Of = Layout<State, kKeyDim, kThreads>;
  constexpr int kPer = Of::kPer, kRows = Of::kRows;
  __shared__ float4 room[2][Of::kWarps * Of::kLine / 4];
  begin_launch(a.flags & kEarly);
  const int thread = static_cast<int>(threadIdx.x), warp = thread >> 5, lane = thread % kRowThreads;
  const u32 tiles = (static_cast<u32>(a.value_dim) + Of::kColumns - 1) / Of::kColumns;
  const u32 unit = blockIdx.x / tiles;
  Place p;
  p.sequence = static_cast<int>(unit / static_cast<u32>(a.value_heads));
  p.head = static_cast<int>(unit) - p.sequence * a.value_heads;
  p.key_head = p.head / (a.value_heads / a.key_heads);
  p.column = static_cast<int>(blockIdx.x - unit * tiles) * Of::kColumns + lane * kPer;
  p.columns = a.value_dim - p.column;
  p.row = thread / kRowThreads * kRows;
  p.rows = a.key_dim - p.row;
  const Span span = span_of(a, p.sequence);
  const i64 slot = first_slot(a, p.sequence);
  Cursor at = cursor_of(a, p, span.begin);
  Token<Of> now;
  if (span.count > 0) load_token<Of, kVectors>(a, p, at, now);
  if (slot < 0) {
    const float zeros[kPer] = {};
    for (int t = 0; t < span.count && thread < kRowThreads; ++t, advance(a, at)) {
      store_numbers<kPer, kVectors>(at.out, a.out_dtype, p.columns, zeros);
    }
    return;
  }
  float s[kRows][kPer];
  load_state<State, kRows, kVectors>(a.from, slot, p, s);
  for (int t = 1; t < kAhead && t < span.count; ++t) prefetch_token(a, p, at, t);
  const bool norm = (a.flags & kL2Norm) != 0, each = (a.flags & kEachToken) != 0;
#pragma unroll 1
  for (int t = 0; t < span.count; ++t) {
    if (t + kAhead < span.count) prefetch_token(a, p, at, kAhead);
    if ((a.flags & kKeyGates) != 0) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i < p.rows) decay_row(s[i], exp2_of(number(at.g, a.g.dtype, p.row + i) * kLog2E));
      }
    } else {
      const float decay = exp2_of(now.gate * kLog2E);
#pragma unroll
      for (int i = 0; i < kRows; ++i) decay_row(s[i], decay);
    }
    float with_key[kPer], with_query[kPer], products[3] = {0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < kPer; ++c) with_key[c] = with_query[c] = 0.0f;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      products[0] += now.k[i] * now.k[i];
      products[1] += now.k[i] * now.q[i];
      products[2] += now.q[i] * now.q[i];
#pragma unroll
      for (int c = 0; c < kPer; ++c) {
        with_key[c] += now.k[i] * s[i][c];
        with_query[c] += now.q[i] * s[i][c];
      }
    }
    float* const sums = reinterpret_cast<float*>(room[t & 1]);
    float mine[kPer / 2];
    scatter_sums<kPer>(with_key, with_query, mine);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      products[i] += __shfl_xor_sync(0xffffffffu, products[i], 8);
      products[i] += __shfl_xor_sync(0xffffffffu, products[i], 16);
    }
    float* const to = sums + warp * Of::kLine;
#pragma unroll
    for (int c = 0; c < kPer / 2; ++c) {
      to[(thread & 8) / 8 * Of::kColumns + lane * kPer + (thread & 16) / 16 * (kPer / 2) + c] = mine[c];
    }
    if ((thread & 31) == 0) {
      *reinterpret_cast<float4*>(to + 2 * Of::kColumns) = {products[0], products[1], products[2], 0.0f};
    }
    __syncthreads();
    add_warps<Of>(sums + lane * kPer, with_key);
    float both[4];
    float of_key = 1.0f;
    if (norm || thread < kRowThreads) {
#pragma unroll
      for (int i = 0; i < 4; ++i) both[i] = 0.0f;
#pragma unroll 4
      for (int w = 0; w < Of::kWarps; ++w) {
        const float4 v = *reinterpret_cast<const float4*>(sums + w * Of::kLine + 2 * Of::kColumns);
        both[0] += v.x;
        both[1] += v.y;
        both[2] += v.z;
      }
      if (norm) of_key = rsqrtf(both[0] + kEps);
    }
    float delta[kPer];
#pragma unroll
    for (int c = 0; c < kPer; ++c) delta[c] = now.beta * (now.v[c] - of_key * with_key[c]) * of_key;
    if (thread < kRowThreads) {  // of key * query, one norm is in delta
      add_warps<Of>(sums + Of::kColumns + lane * kPer, with_query);
      const float of_query = a.scale * (norm ? rsqrtf(both[2] + kEps) : 1.0f);
#pragma unroll
      for (int c = 0; c < kPer; ++c) with_query[c] = of_query * (with_query[c] + both[1] * delta[c]);
      store_numbers<kPer, kVectors>(at.out, a.out_dtype, p.columns, with_query);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) s[i][c] += now.k[i] * delta[c];
    }
    if (each) store_state<State, kRows, kVectors>(a.to, slot_of(a, p.sequence, t), p, s);
    advance(a, at);
    if (t + 1 < span.count) load_token<Of, kVectors>(a, p, at, now);
  }
  if (!each) store_state<State, kRows, kVectors>(a.to, slot, p, s);
}

}  // namespace delta_rule
}  // namespace precast
