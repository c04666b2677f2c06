// Shared by forward and backward on the GPU: units of channels, the taps of a filter, and sequences within a row.
#pragma once

#include "../gpu/unit.cuh"
#include "args.h"

namespace precast {
namespace causal_conv1d {

// What N channels multiply the tokens with, that of the newest token last, and their biases.
template <class T, int N, int W>
struct Taps {
  float weight[W][N];
  float bias[N];

  DEVICE Taps(const char* weights, const char* biases, u32 channel, int width, int wide) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
#pragma unroll
      for (int n = 0; n < N; ++n) weight[k][n] = 0.0f;
    }
    const i64 first = static_cast<i64>(channel) * width;
    const bool aligned = (reinterpret_cast<u64>(weights) & 15) == 0;
    if (N * W * T::kBytes % 16 == 0 && width == W && wide == 0 && aligned) {
      from_vectors<T>(weights + first * T::kBytes);
    } else if (N * W % 4 == 0 && width == W && wide != 0 && aligned) {
      from_vectors<Float32>(weights + first * 4);
    } else {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        if (k < W - width) continue;
#pragma unroll
        for (int n = 0; n < N; ++n) weight[k][n] = parameter<T>(weights, first + n * width + k - (W - width), wide);
      }
    }
#pragma unroll
    for (int n = 0; n < N; ++n) bias[n] = biases != nullptr ? parameter<T>(biases, channel + n, wide) : 0.0f;
  }

  // The sum for the newest of M tokens. Taps that the filter does not have are left out: their tokens may be infinite.
  template <int M>
  DEVICE void apply(const float (&x)[M][N], int width, float (&z)[N]) const {
    static_assert(M >= W, "as many tokens as taps");
#pragma unroll
    for (int n = 0; n < N; ++n) z[n] = bias[n];
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (k < W - 2 && k < W - width) continue;
#pragma unroll
      for (int n = 0; n < N; ++n) z[n] = fmaf(weight[k][n], x[M - W + k][n], z[n]);
    }
  }

 private:
  template <class From>
  DEVICE void from_vectors(const char* p) {
    constexpr int kEach = From::kPerVector;
#pragma unroll
    for (int v = 0; v < N * W / kEach; ++v) {
      for_elements<From>(load_constant(p + v * 16),
                         [&](int e, float value) { weight[(v * kEach + e) % W][(v * kEach + e) / W] = value; });
    }
  }
};

// The last W - 1 tokens.
template <int N, int W>
DEVICE void forget_oldest(float (&x)[W][N]) {
#pragma unroll
  for (int k = 0; k + 1 < W; ++k) {
#pragma unroll
    for (int n = 0; n < N; ++n) x[k][n] = x[k + 1][n];
  }
}

template <class T, int N>
DEVICE void load_each(const char* p, i64 stride, float (&v)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) v[n] = T::load(p + n * stride);
}

template <class T, int N>
DEVICE void store_each(char* p, i64 stride, const float (&v)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) T::store(p + n * stride, v[n]);
}

DEVICE i64 integer(const Integers& from, i64 batch, i64 i) {
  const i64 at = batch * from.batch + i * from.stride;
  return from.is_long != 0 ? reinterpret_cast<const i64*>(from.data)[at] : reinterpret_cast<const int*>(from.data)[at];
}

// The unit of a thread.
template <int N>
struct Place {
  u32 channel, line;  // the line: a chunk, numbered through the rows
  i64 row, begin, end;
  DEVICE Place(const Walk& a, u32 index) {
    const u32 slow = quotient(index, a.fast), fast = index - slow * a.fast.divisor;
    if (a.along != 0) {  // chunks of one channel of one row
      row = slow / a.channels;
      channel = slow - static_cast<u32>(row) * a.channels;
      line = static_cast<u32>(row) * a.chunks.divisor + fast;
    } else {
      channel = fast * N;
      line = slow;
      row = quotient(slow, a.chunks);
    }
    begin = static_cast<i64>(line - static_cast<u32>(row) * a.chunks.divisor) * a.chunk;
    end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
  }
};

// A sequence within a row. Bad numbers give wrong sequences, but none outside of the row.
struct Sequence {
  const Walk& a;
  i64 row, limit;  // beyond which nobody asks where a run ends
  i64 begin, end;  // a run that begins before the chunk may begin later, but at least kMostWidth tokens before it
  i64 number;      // of its states
  bool has_initial, has_final, is_padding;

  DEVICE Sequence(const Walk& walk, i64 of_row, i64 first, i64 last) : a(walk), row(of_row), limit(last) {
    number = row;
    begin = 0;
    end = a.length;
    if (a.cut == kStarts) {
      i64 low = 0, high = a.cuts.count + 1;  // the first that begins here or later
      while (low < high) {
        const i64 middle = (low + high) >> 1;
        if (integer(a.cuts, 0, middle) < first) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      const bool here = low <= a.cuts.count && integer(a.cuts, 0, low) == first;
      number = here ? low : low - 1;
      if (number >= 0) begin = integer(a.cuts, 0, number);
      begin = begin < 0 ? 0 : begin > first ? first : begin;
    } else if (a.cut == kIndex) {
      begin = first;
      while (begin > 0 && begin > first - kMostWidth && first < a.length &&
             integer(a.cuts, row, begin - 1) == integer(a.cuts, row, first)) {
        --begin;
      }
    }
    found(first);
  }

  DEVICE bool next() {
    if (a.cut == kWhole || (a.cut == kStarts ? number >= a.cuts.count : end >= a.length)) return false;
    begin = end;
    if (a.cut == kStarts) ++number;
    found(begin);
    return true;
  }

 private:
  DEVICE void found(i64 from) {
    has_initial = has_final = true;
    is_padding = false;
    if (a.cut == kStarts) {
      has_initial = has_final = number >= 0 && number < a.cuts.count;
      is_padding = !has_initial;
      end = number < a.cuts.count ? integer(a.cuts, 0, number + 1) : a.length;
      end = end < from ? from : end > a.length ? a.length : end;
    } else if (a.cut == kIndex) {
      const i64 last = limit < a.length ? limit : a.length;
      end = from;
      if (from < a.length) {
        const i64 mine = integer(a.cuts, row, from);
        is_padding = mine < 0;
        for (++end; end < last && integer(a.cuts, row, end) == mine;) ++end;
      }
      has_initial = begin == 0;
      has_final = end == a.length;
    }
  }
};

// The W - 1 tokens before token t of a sequence: its own, of its initial state, or zeros.
template <class T, int N, int W>
DEVICE void load_before(const Walk& a, const Sequence& sequence, u32 channel, i64 t, float (&x)[W][N]) {
#pragma unroll
  for (int k = 0; k + 1 < W; ++k) {
    const i64 at = t - (W - 1) + k, before = at - sequence.begin + a.width - 1;  // its place in an initial state
#pragma unroll
    for (int n = 0; n < N; ++n) x[k][n] = 0.0f;
    if (k < W - a.width) continue;
    if (at >= sequence.begin) {
      Unit<T, N> unit;
      unit.load(a.x.data + sequence.row * a.x.batch + channel * a.x.channel + at * a.x.token);
      unit.unpack(x[k]);
    } else if (a.initial.data != nullptr && sequence.has_initial && before >= 0) {
      load_each<T, N>(
          a.initial.data + sequence.number * a.initial.batch + channel * a.initial.channel + before * a.initial.token,
          a.initial.channel, x[k]);
    }
  }
}

}  // namespace causal_conv1d
}  // namespace precast
