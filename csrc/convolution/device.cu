// Causal convolutions on the GPU: y[t] = activation(bias + sum over k of weight[k] x[t - width + 1 + k]) of each
// channel, in float32, rounded once. See host.cpp for the choice of kernels.
#include "../gpu/early.cuh"
#include "conv.cuh"
#include "entries.h"

namespace precast {
namespace causal_conv1d {

template <class T, int N>
DEVICE void activate(int silu, float (&z)[N]) {
  if (silu == 0) return;
#pragma unroll
  for (int n = 0; n < N; ++n) z[n] = times_sigmoid<T>(z[n], z[n]);
}

// N channels over a chunk of tokens, with the last W - 1 tokens in registers. kStep tokens are loaded at a time.
template <class T, int N, int W>
DEVICE void forward_walk(const ForwardArgs& args) {
  constexpr int kStep = 4;
  const Walk& a = args.walk;
  begin_launch(a.early);
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.total) return;
  const Place<N> place(a, index);
  const u32 channel = place.channel;
  const char* x = a.x.data + place.row * a.x.batch + channel * a.x.channel;
  char* y = args.y.data + place.row * args.y.batch + channel * args.y.channel;
  Sequence sequence(a, place.row, place.begin, place.end);
  float window[W][N];
  load_before<T>(a, sequence, channel, place.begin, window);
  const Taps<T, N, W> taps(a.weight, a.bias, channel, a.width, a.wide);

  const auto token = [&](const Unit<T, N>& unit, i64 t) {
    float z[N];
    unit.unpack(window[W - 1]);
    taps.apply(window, a.width, z);
    activate<T>(a.silu, z);
    if (sequence.is_padding) {
#pragma unroll
      for (int n = 0; n < N; ++n) z[n] = 0.0f;
    }
    Unit<T, N>::store(y + t * args.y.token, z);
    forget_oldest(window);
  };
  const auto close = [&] {  // at the end of a sequence
    if (args.final.data == nullptr || !sequence.has_final) return;
    char* const final = args.final.data + sequence.number * args.final.batch + channel * args.final.channel;
#pragma unroll
    for (int k = 0; k + 1 < W; ++k) {
      const int at = k - (W - a.width);
      if (at >= 0) store_each<T, N>(final + at * args.final.token, args.final.channel, window[k]);
    }
  };

  i64 t = place.begin;
  for (;;) {
    const i64 stop = sequence.end < place.end ? sequence.end : place.end;
#pragma unroll 1
    for (; t + kStep <= stop; t += kStep) {
      Unit<T, N> unit[kStep];
#pragma unroll
      for (int i = 0; i < kStep; ++i) unit[i].load(x + (t + i) * a.x.token);
#pragma unroll
      for (int i = 0; i < kStep; ++i) token(unit[i], t + i);
    }
#pragma unroll 1
    for (; t < stop; ++t) {
      Unit<T, N> unit;
      unit.load(x + t * a.x.token);
      token(unit, t);
    }
    if (t < sequence.end) break;
    close();
    if (t >= place.end && place.end < a.length) break;  // what begins here is of the next chunk
    if (!sequence.next()) break;
    load_before<T>(a, sequence, channel, t, window);
  }
}

// Two neighbouring vectors of tokens of one channel, of a row that is one sequence. The last of a row may be alone.
template <class T, int W>
DEVICE void forward_rows(const ForwardArgs& args) {
  constexpr int kEach = T::kPerVector, kBefore = W - 1, kVectors = (kBefore + kEach - 1) / kEach;
  constexpr int kOwn = kVectors * kEach;  // the place of the first own token
  const Walk& a = args.walk;
  begin_launch(a.early);
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.total) return;
  const u32 slow = quotient(index, a.fast), pair = index - slow * a.fast.divisor;
  const u32 row = slow / a.channels, channel = slow - row * a.channels;
  const i64 first = static_cast<i64>(pair) * 2 * kEach, left = a.length - first;
  const char* x = a.x.data + row * a.x.batch + channel * a.x.channel + first * T::kBytes;
  const bool both = left >= 2 * kEach, ends = left <= 2 * kEach;
  Vector v[kVectors + 2];
  v[kVectors] = load(x);
  v[kVectors + 1] = both ? load(x + 16) : Vector{{0, 0, 0, 0}};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    v[k] = pair > 0 ? load(x - (kVectors - k) * 16) : Vector{{0, 0, 0, 0}};
  }
  const Taps<T, 1, W> taps(a.weight, a.bias, channel, a.width, a.wide);
  float all[kOwn + 2 * kEach];
#pragma unroll
  for (int k = 0; k < kVectors + 2; ++k) {
    for_elements<T>(v[k], [&](int e, float value) { all[k * kEach + e] = value; });
  }
  if (pair == 0 && a.initial.data != nullptr) {
    const char* initial = a.initial.data + row * a.initial.batch + channel * a.initial.channel;
#pragma unroll
    for (int k = 0; k < kBefore; ++k) {
      const int at = k - (W - a.width);
      if (at >= 0) all[kOwn - kBefore + k] = T::load(initial + at * a.initial.token);
    }
  }
  char* y = args.y.data + row * args.y.batch + channel * args.y.channel + first * T::kBytes;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    float z[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) z[e] = taps.bias[0];
#pragma unroll
    for (int tap = 0; tap < W; ++tap) {
      if (tap < W - a.width) continue;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        z[e] = fmaf(taps.weight[tap][0], all[kOwn + k * kEach + e - kBefore + tap], z[e]);
      }
    }
    activate<T>(a.silu, z);
    if (k == 0 || both) Unit<T, kEach>::store(y + k * 16, z);
  }
  if (args.final.data == nullptr || !ends) return;
  char* const final = args.final.data + row * args.final.batch + channel * args.final.channel;
#pragma unroll
  for (int k = 0; k < kBefore; ++k) {
    const int at = k - (W - a.width), last = kOwn + kEach - kBefore + k;
    if (at >= 0) T::store(final + at * args.final.token, both ? all[last + kEach] : all[last]);
  }
}

// N channels of the new tokens of a sequence, and of its state.
template <class T, int N, int W>
DEVICE void update(const UpdateArgs& a) {
  constexpr int kStep = 2;
  begin_launch(a.early);
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.total) return;
  const u32 row = quotient(index, a.units), channel = (index - row * a.units.divisor) * N;
  const char* x = a.x.data + row * a.x.batch + channel * a.x.channel;
  char* y = a.y.data + row * a.y.batch + channel * a.y.channel;
  const i64 slot = a.slots.data != nullptr ? integer(a.slots, 0, row) : row;
  if (slot < 0 || slot >= a.pool) {
    const float zeros[N] = {};
#pragma unroll 1
    for (int t = 0; t < a.tokens; ++t) Unit<T, N>::store(y + t * a.y.token, zeros);
    return;
  }
  char* state = a.state.data + slot * a.state.batch + channel * a.state.channel;
  // The place in the state of the token that is `ahead` of the first new one, if it has one.
  const bool turns = a.positions.data != nullptr;
  i64 origin = a.length - a.tokens;
  if (turns) {
    origin = integer(a.positions, 0, row) % a.length;
    if (origin < 0) origin += a.length;
  }
  Unit<T, N> old[W - 1], unit[kStep];
#pragma unroll
  for (int k = 0; k + 1 < W; ++k) {
    if (k < W - a.width) continue;
    i64 at = turns ? origin - (W - 1) + k : a.length - (W - 1) + k;
    if (at < 0) at += a.length;
    old[k].load(state + at * a.state.token);
  }
  const auto load_some = [&](int first) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (first + i < a.tokens) unit[i].load(x + (first + i) * a.x.token);
    }
  };
  load_some(0);
  const Taps<T, N, W> taps(a.weight, a.bias, channel, a.width, a.wide);
  float window[W][N];
#pragma unroll
  for (int k = 0; k + 1 < W; ++k) {
    if (k >= W - a.width) {
      old[k].unpack(window[k]);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) window[k][n] = 0.0f;
    }
  }
  if (!turns) {  // what stays moves towards the beginning: first what is not in the window
    const i64 kept = a.length - (a.width - 1);
#pragma unroll 1
    for (i64 i = a.tokens; i < kept; ++i) {
      Unit<T, N> moved;
      float v[N];
      moved.load(state + i * a.state.token);
      moved.unpack(v);
      Unit<T, N>::store(state + (i - a.tokens) * a.state.token, v);
    }
#pragma unroll
    for (int k = 0; k + 1 < W; ++k) {
      const i64 to = a.length - (W - 1) + k - a.tokens;
      if (k >= W - a.width && to >= 0) Unit<T, N>::store(state + to * a.state.token, window[k]);
    }
  }
#pragma unroll 1
  for (int first = 0; first < a.tokens; first += kStep) {
    if (first > 0) load_some(first);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (first + i >= a.tokens) break;
      float z[N];
      unit[i].unpack(window[W - 1]);
      taps.apply(window, a.width, z);
      activate<T>(a.silu, z);
      Unit<T, N>::store(y + (first + i) * a.y.token, z);
      i64 to = origin + first + i;
      if (turns && to >= a.length) to %= a.length;
      if (to >= 0) Unit<T, N>::store(state + to * a.state.token, window[W - 1]);
      forget_oldest(window);
    }
  }
}

// The same for states of S tokens, of which all channels follow each other: without a ring, and up to 4 taps.
template <class T, int S>
DEVICE void update_rows(const UpdateArgs& a) {
  constexpr int N = T::kPerVector, W = 4;
  begin_launch(a.early);
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.total) return;
  const u32 row = quotient(index, a.units), channel = (index - row * a.units.divisor) * N;
  const char* x = a.x.data + row * a.x.batch + channel * a.x.channel;
  char* y = a.y.data + row * a.y.batch + channel * a.y.channel;
  const i64 slot = a.slots.data != nullptr ? integer(a.slots, 0, row) : row;
  const bool exists = slot >= 0 && slot < a.pool;
  char* state = a.state.data + (exists ? slot : 0) * a.state.batch + channel * a.state.channel;
  Vector old[S];
#pragma unroll
  for (int v = 0; v < S; ++v) old[v] = exists ? load(state + v * 16) : Vector{{0, 0, 0, 0}};
  Unit<T, N> unit;
  unit.load(x);
  const Taps<T, N, W> taps(a.weight, a.bias, channel, a.width, a.wide);
  float all[S + 1][N];
#pragma unroll
  for (int v = 0; v < S; ++v) {
    for_elements<T>(old[v], [&](int e, float value) { all[(v * N + e) % S][(v * N + e) / S] = value; });
  }
#pragma unroll 1
  for (int t = 0; t < a.tokens; ++t) {
    if (t > 0) unit.load(x + t * a.x.token);
    float z[N];
    unit.unpack(all[S]);
    taps.apply(all, a.width, z);
    activate<T>(a.silu, z);
#pragma unroll
    for (int n = 0; n < N; ++n) z[n] = exists ? z[n] : 0.0f;
    Unit<T, N>::store(y + t * a.y.token, z);
    forget_oldest(all);
  }
  if (!exists) return;
#pragma unroll
  for (int v = 0; v < S; ++v) {
    float values[N];
#pragma unroll
    for (int e = 0; e < N; ++e) values[e] = all[(v * N + e) % S][(v * N + e) / S];
    Unit<T, N>::store(state + v * 16, values);
  }
}

CAUSAL_CONV1D_KERNELS(KERNEL)

}  // namespace causal_conv1d
}  // namespace precast
