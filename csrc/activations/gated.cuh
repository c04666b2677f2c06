// Shared by forward and backward on the GPU.
#pragma once

#include "../gpu/shifted.cuh"
#include "args.h"

namespace precast {
namespace activations {

struct Place {
  i64 row;
  u32 column;  // in units
};

DEVICE Place place_of(u32 index, const Units& units) {
  const u32 row = quotient(index, units.columns);
  return {static_cast<i64>(row), index - row * units.columns.divisor};
}

// The nearest number within [-limit, limit]. NaN stays NaN.
DEVICE float clamped(float x, float limit) { return x > limit ? limit : x < -limit ? -limit : x; }

// A vector of ones, which takes the place of factors if there are none. Products with it are exact.
template <class T>
DEVICE Vector ones() {
  float one[T::kPerWord];
#pragma unroll
  for (int e = 0; e < T::kPerWord; ++e) one[e] = 1.0f;
  const u32 word = T::pack(one);
  return {{word, word, word, word}};
}

struct Halves {
  Vector gate, factor;
};

// Separates two vectors in which gates and factors alternate, and joins them again.
template <class T>
DEVICE Halves separated(const Vector& first, const Vector& second) {
  Halves x;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const Vector& from = k < 2 ? first : second;
    const u32 low = from.word[2 * k % 4], high = from.word[2 * k % 4 + 1];
    x.gate.word[k] = T::kPerWord == 1 ? low : (low & 0xffffu) | high << 16;
    x.factor.word[k] = T::kPerWord == 1 ? high : low >> 16 | (high & 0xffff0000u);
  }
  return x;
}

template <class T>
DEVICE Halves joined(const Halves& x) {
  Halves both;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    Vector& to = k < 2 ? both.gate : both.factor;
    const u32 gate = x.gate.word[k], factor = x.factor.word[k];
    to.word[2 * k % 4] = T::kPerWord == 1 ? gate : (gate & 0xffffu) | factor << 16;
    to.word[2 * k % 4 + 1] = T::kPerWord == 1 ? factor : gate >> 16 | (factor & 0xffff0000u);
  }
  return both;
}

// Appends a word and drops the first. A loop that takes the first word and appends its result needs no unrolling, which
// keeps the code of `others` short.
DEVICE void append(Vector& v, u32 word) {
  v.word[0] = v.word[1];
  v.word[1] = v.word[2];
  v.word[2] = v.word[3];
  v.word[3] = word;
}

// Gates and factors for one vector of the result. `column`: bytes before the vector in a row of the result.
// kAny: gates and factors may alternate, or there may be no factors.
template <class T, bool kAny, class Args>
DEVICE Halves load_halves(const Args& a, i64 row, i64 column) {
  if (kAny && a.step == 2) {
    const char* gate = a.gate + row * a.gate_stride + column * 2;
    const Vector first = load_constant(gate), second = load_constant(gate + 16);
    return separated<T>(first, second);
  }
  const Vector gate = load_constant(a.gate + row * a.gate_stride + column);
  if (kAny && a.factor == nullptr) return {gate, ones<T>()};
  return {gate, load_constant(a.factor + row * a.factor_stride + column)};
}

// Elements of a row at the address of any of them, `from` to `from` + 7 or 3, of which the row has those from 0 on and
// below `columns`. The others are zero.
template <class T>
DEVICE Vector load_elements(const char* row, i64 from, i64 columns) {
  Vector v;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float element[T::kPerWord];
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) {
      const i64 at = from + w * T::kPerWord + e;
      element[e] = at >= 0 && at < columns ? T::load(row + at * T::kBytes) : 0.0f;
    }
    v.word[w] = T::pack(element);
  }
  return v;
}

// Vectors of rows at any address, for one vector of the result: out of the two aligned vectors each that contain them.
// All are loaded at once, and one branch decides for all whether they lie in the tensors' memory.
struct Stream {
  const char *row, *begin, *end;
};

template <class T, int kStreams>
DEVICE void load_anywhere(const Stream (&stream)[kStreams], i64 column, u32 row_bytes, Vector (&found)[kStreams]) {
  u32 from[kStreams];
  bool inside = true;
#pragma unroll
  for (int s = 0; s < kStreams; ++s) {
    const char* const at = stream[s].row + column;
    from[s] = static_cast<u32>(reinterpret_cast<u64>(at)) & 15;
    inside = inside && at - from[s] >= stream[s].begin && at - from[s] + 32 <= stream[s].end;
  }
  if (inside) {
    Vector first[kStreams], second[kStreams];
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      const char* const at = stream[s].row + column - from[s];
      first[s] = load_constant(at);
      second[s] = load_constant(at + 16);
    }
#pragma unroll
    for (int s = 0; s < kStreams; ++s) found[s] = shifted(first[s], second[s], from[s]);
    return;
  }
#pragma unroll
  for (int s = 0; s < kStreams; ++s) {
    found[s] = load_elements<T>(stream[s].row, column / T::kBytes, row_bytes / T::kBytes);
  }
}

// Without factors, gates take their place.
template <class Args>
DEVICE Stream gate_stream(const Args& a, i64 row) {
  return {a.gate + row * a.gate_stride, a.gate, a.gate_end};
}
template <class Args>
DEVICE Stream factor_stream(const Args& a, i64 row) {
  if (a.factor == nullptr) return gate_stream(a, row);
  return {a.factor + row * a.factor_stride, a.factor, a.factor_end};
}

// The same for one element.
struct Pair {
  float gate, factor;
};

template <class T, bool kAny, class Args>
DEVICE Pair load_pair(const Args& a, i64 row, i64 column) {
  if (kAny) column *= a.step;
  const float gate = T::load(a.gate + row * a.gate_stride + column);
  if (kAny && a.factor == nullptr) return {gate, 1.0f};
  return {gate, T::load(a.factor + row * a.factor_stride + column)};
}

// What GELU has in place of alpha x: twice the argument of its tanh.
DEVICE float twice_inner(float x) { return x * fmaf(x * x, 0.07135481f, 1.5957691f); }

// Whether a unit is the one that is not a whole vector.
DEVICE bool is_tail(u32 index, const Units& units, int tail) { return tail != 0 && index + 1 == units.total; }

}  // namespace activations
}  // namespace precast
