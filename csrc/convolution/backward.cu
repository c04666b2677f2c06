// The gradients of causal convolutions on the GPU. With z as in the forward and g[t] = grad[t] activation'(z[t]):
//
//   grad_x[t] = sum over k of weight[k] g[t + width - 1 - k]    grad_weight[k] = sum over t of g[t] x[t - width + 1 +
//   k]
//
// and grad_bias is the sum of g. Arithmetic is in float32; z is computed again. Sums over tokens have a fixed order.
#include "../gpu/walk.cuh"
#include "conv.cuh"
#include "entries.h"

namespace precast {
namespace causal_conv1d {

template <class T>
DEVICE float silu_slope(float z) {
  const float s = sigmoid_of<T>(z);
  return s * (1.0f + fminf(fmaxf(z, -300.0f), 300.0f) * (1.0f - s));
}

// N channels over a chunk of tokens, and over the width - 1 tokens behind it, which have gradients of its last tokens.
// Those of the last W - 1 tokens are unfinished, and in registers.
template <class T, int N, int W>
DEVICE void backward_walk(const BackwardArgs& args) {
  constexpr int kStep = N == 1 || W > 4 ? 2 : 4;
  const Walk& a = args.walk;
  next_launch_may_start();
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.total) return;
  const Place<N> place(a, index);
  const u32 channel = place.channel;
  const char* x = a.x.data + place.row * a.x.batch + channel * a.x.channel;
  const char* grad = args.grad.data + place.row * args.grad.batch + channel * args.grad.channel;
  char* grad_x = args.grad_x.data + place.row * args.grad_x.batch + channel * args.grad_x.channel;
  const i64 beyond = place.end + a.width - 1;
  Sequence sequence(a, place.row, place.begin, beyond);
  float window[W][N], open[W][N], of_weight[W][N], of_bias[N];
  load_before<T>(a, sequence, channel, place.begin, window);
  const Taps<T, N, W> taps(a.weight, a.bias, channel, a.width, a.wide);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    of_bias[n] = 0.0f;
#pragma unroll
    for (int k = 0; k < W; ++k) open[k][n] = of_weight[k][n] = 0.0f;
  }

  // The gradient of token t is finished.
  const auto finish = [&](i64 t, const float (&v)[N]) {
    if (t >= sequence.begin) {
      if (t >= place.begin && t < place.end) Unit<T, N>::store(grad_x + t * args.grad_x.token, v);
      return;
    }
    const i64 at = t - sequence.begin + a.width - 1;  // its place in the initial state
    if (args.grad_initial.data == nullptr || !sequence.has_initial || sequence.begin < place.begin || at < 0) return;
    const Lines& to = args.grad_initial;
    store_each<T, N>(to.data + sequence.number * to.batch + channel * to.channel + at * to.token, to.channel, v);
  };
  const auto token = [&](const Unit<T, N>& unit, const Unit<T, N>& of_y, i64 t) {
    float z[N], g[N];
    unit.unpack(window[W - 1]);
    of_y.unpack(g);
    if (a.silu != 0) {
      taps.apply(window, a.width, z);
#pragma unroll
      for (int n = 0; n < N; ++n) g[n] *= silu_slope<T>(z[n]);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (sequence.is_padding) g[n] = 0.0f;
      open[W - 1][n] = 0.0f;
      if (t < place.end) of_bias[n] += g[n];
    }
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (k < W - 2 && k < W - a.width) continue;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        open[k][n] = fmaf(taps.weight[k][n], g[n], open[k][n]);
        if (t < place.end && !sequence.is_padding) of_weight[k][n] = fmaf(g[n], window[k][n], of_weight[k][n]);
      }
    }
    finish(t - (W - 1), open[0]);
    forget_oldest(window);
    forget_oldest(open);
  };

  i64 t = place.begin;
  for (;;) {
    const i64 stop = sequence.end < beyond ? sequence.end : beyond;
#pragma unroll 1
    for (; t + kStep <= stop; t += kStep) {
      Unit<T, N> unit[kStep], of_y[kStep];
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        unit[i].load(x + (t + i) * a.x.token);
        of_y[i].load(grad + (t + i) * args.grad.token);
      }
#pragma unroll
      for (int i = 0; i < kStep; ++i) token(unit[i], of_y[i], t + i);
    }
#pragma unroll 1
    for (; t < stop; ++t) {
      Unit<T, N> unit, of_y;
      unit.load(x + t * a.x.token);
      of_y.load(grad + t * args.grad.token);
      token(unit, of_y, t);
    }
    const bool ends = t == sequence.end && sequence.has_final && args.grad_final.data != nullptr;
    const Lines& from = args.grad_final;
#pragma unroll
    for (int k = 0; k + 1 < W; ++k) {
      const int at = k - (W - a.width);
      if (ends && at >= 0) {
        float added[N];
        load_each<T, N>(from.data + sequence.number * from.batch + channel * from.channel + at * from.token,
                        from.channel, added);
#pragma unroll
        for (int n = 0; n < N; ++n) open[k][n] += added[n];
      }
      finish(t - (W - 1) + k, open[k]);
    }
    if (t < sequence.end || (t >= place.end && place.end < a.length)) break;
    if (!sequence.next()) break;
    load_before<T>(a, sequence, channel, t, window);
#pragma unroll
    for (int k = 0; k < W; ++k) {
#pragma unroll
      for (int n = 0; n < N; ++n) open[k][n] = 0.0f;
    }
  }

  float* const parts = args.parts + place.line * args.columns;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const int at = k - (W - a.width);
      if (at >= 0) parts[static_cast<i64>(channel + n) * a.width + at] = of_weight[k][n];
    }
    if (a.bias != nullptr) parts[static_cast<i64>(a.channels) * a.width + channel + n] = of_bias[n];
  }
}

// Rows that are one sequence, with tokens as neighbours in memory: a warp has a chunk of a channel. A lane has a vector
// of tokens, of whose gradients the last ones need those of the next lane; a warp's last lane only lends its neighbour
// some.
template <class T>
DEVICE void backward_rows(const BackwardArgs& args) {
  constexpr int W = 4, kEach = T::kPerVector, kBefore = W - 1;
  const Walk& a = args.walk;
  next_launch_may_start();
  const u32 lane = threadIdx.x & 31, index = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (index >= a.total) return;
  const u32 slow = quotient(index, a.chunks), chunk = index - slow * a.chunks.divisor;
  const u32 row = slow / a.channels, channel = slow - row * a.channels;
  const i64 vectors = a.length / kEach, begin = static_cast<i64>(chunk) * a.chunk;
  const i64 end = begin + a.chunk < vectors ? begin + a.chunk : vectors;
  const char* x = a.x.data + row * a.x.batch + channel * a.x.channel;
  const char* grad = args.grad.data + row * args.grad.batch + channel * args.grad.channel;
  char* grad_x = args.grad_x.data + row * args.grad_x.batch + channel * args.grad_x.channel;
  const auto state_at = [&](const Lines& of, int k) {
    return of.data + row * of.batch + channel * of.channel + (k - (W - a.width)) * of.token;
  };
  const Taps<T, 1, W> taps(a.weight, a.bias, channel, a.width, a.wide);
  float of_weight[W] = {}, of_bias = 0.0f;
#pragma unroll 1
  for (i64 first = begin; first < end; first += 31) {
    const i64 vector = first + lane;
    const bool there = vector < vectors, mine = lane < 31 && vector < end;
    Vector own = {{0, 0, 0, 0}}, before = own, of_y = own;
    if (there) {
      own = load(x + vector * 16);
      of_y = load(grad + vector * 16);
      if (vector > 0) before = load(x + vector * 16 - 16);
    }
    float all[kBefore + kEach], g[kEach + kBefore];
    for_elements<T>(before, [&](int e, float value) {
      if (e >= kEach - kBefore) all[e - (kEach - kBefore)] = value;
    });
    for_elements<T>(own, [&](int e, float value) { all[kBefore + e] = value; });
    for_elements<T>(of_y, [&](int e, float value) { g[e] = value; });
    if (vector == 0 && a.initial.data != nullptr) {
#pragma unroll
      for (int k = 0; k < kBefore; ++k) {
        if (k >= W - a.width) all[k] = T::load(state_at(a.initial, k));
      }
    }
    if (a.silu != 0) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        float z = taps.bias[0];
#pragma unroll
        for (int k = 0; k < W; ++k) {
          if (k >= W - a.width) z = fmaf(taps.weight[k][0], all[e + k], z);
        }
        g[e] = there ? g[e] * silu_slope<T>(z) : 0.0f;
      }
    }
#pragma unroll
    for (int e = 0; e < kBefore; ++e) {
      g[kEach + e] = __uint_as_float(__shfl_down_sync(0xffffffffu, __float_as_uint(g[e]), 1));
    }
    if (!mine) continue;
    float result[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      result[e] = 0.0f;
      of_bias += g[e];
#pragma unroll
      for (int k = 0; k < W; ++k) {
        if (k < W - a.width) continue;
        result[e] = fmaf(taps.weight[k][0], g[e + kBefore - k], result[e]);
        of_weight[k] = fmaf(g[e], all[e + k], of_weight[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kBefore; ++k) {
      if (k < W - a.width) continue;
      if (vector + 1 == vectors && args.grad_final.data != nullptr) {
        result[kEach - kBefore + k] += T::load(state_at(args.grad_final, k));
      }
      if (vector == 0 && args.grad_initial.data != nullptr) {
        float sum = 0.0f;
#pragma unroll
        for (int tap = 0; tap <= k; ++tap) {
          if (tap >= W - a.width) sum = fmaf(taps.weight[tap][0], g[k - tap], sum);
        }
        T::store(const_cast<char*>(state_at(args.grad_initial, k)), sum);
      }
    }
    Unit<T, kEach>::store(grad_x + vector * 16, result);
  }
  float* const parts = args.parts + (static_cast<i64>(row) * a.chunks.divisor + chunk) * args.columns;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const float sum = warp_sum(of_weight[k]);
    const int at = k - (W - a.width);
    if (lane == 0 && at >= 0) parts[static_cast<i64>(channel) * a.width + at] = sum;
  }
  const float sum = warp_sum(of_bias);
  if (lane == 0 && a.bias != nullptr) parts[static_cast<i64>(a.channels) * a.width + channel] = sum;
}

DEVICE void parameter_columns(const ColumnArgs& a) { add_columns(a.parts, a.columns, a.lines, a.result, a.dtype); }

CAUSAL_CONV1D_BACKWARD_KERNELS(KERNEL)

}  // namespace causal_conv1d
}  // namespace precast
