// One token of a state-space model (Dao and Gu, 2024) on the GPU, for each head:
//
//   d = softplus(dt + dt_bias)    state[p][n] = state[p][n] exp(d A) + d x[p] B[n]    y[p] = sum(state[p] C) + D x[p]
//
// and y times silu(z). Arithmetic is in float32; y takes the state before it is rounded.
#include "../gpu/early.cuh"
#include "../gpu/unit.cuh"
#include "args.h"
#include "entries.h"

namespace precast {
namespace state_space {

template <class T>
DEVICE float number(const Numbers& from, i64 sequence, i64 head, float absent) {
  if (from.data == nullptr) return absent;
  return parameter<T>(from.data, sequence * from.sequence + head * from.head, from.wide);
}

DEVICE const char* at(const Vectors& from, i64 sequence, i64 head) {
  return from.data + sequence * from.sequence + head * from.head;
}

// kRows rows of a head, each over some lanes of a warp. T: of x, b and c; S: of the state.
template <class T, class S, int N>
DEVICE void update(const UpdateArgs& a) {
  begin_launch(a.early);
  const u32 thread = blockIdx.x * kThreads + threadIdx.x, lane = threadIdx.x & (a.lanes - 1);
  u32 index = thread / a.lanes;
  const bool here = index < a.total;  // the other lanes of the warp take part in sums
  if (!here) index = 0;
  const u32 line = quotient(index, a.units), unit = index - line * a.units.divisor;
  const u32 sequence = quotient(line, a.heads), head = line - sequence * a.heads.divisor, group = head / a.group;
  i64 slot = sequence;
  if (a.slots != nullptr) {
    const i64 place = sequence * a.slot_stride;
    slot =
        a.long_slots != 0 ? reinterpret_cast<const i64*>(a.slots)[place] : reinterpret_cast<const int*>(a.slots)[place];
  }
  const bool exists = here && slot >= 0 && slot < a.pool;
  const int first = static_cast<int>(unit * kRows);
  char* const state = a.state + (exists ? slot : 0) * a.state_slot + head * a.state_head;
  const char *b = at(a.b, sequence, group), *c = at(a.c, sequence, group), *x = at(a.x, sequence, head);

  float d = number<T>(a.dt, sequence, head, 0.0f) + number<T>(a.dt_bias, 0, head, 0.0f);
  if (a.softplus != 0 && d <= 20.0f) d = log1pf(expf(d));
  const float decay = expf(d * number<T>(a.decay, 0, head, 0.0f));
  float in[kRows], sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    in[r] = exists && first + r < a.rows ? T::load(x + (first + r) * T::kBytes) : 0.0f;
    sum[r] = 0.0f;
  }
#pragma unroll 1
  for (int n = static_cast<int>(lane) * N; n < a.size && exists; n += static_cast<int>(a.lanes) * N) {
    Unit<S, N> old[kRows];
    Unit<T, N> into, out;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r < a.rows) old[r].load(state + (static_cast<i64>(first + r) * a.size + n) * S::kBytes);
    }
    into.load(b + n * T::kBytes);
    out.load(c + n * T::kBytes);
    float p[N], q[N];
    into.unpack(p);
    out.unpack(q);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= a.rows) continue;
      float v[N];
      old[r].unpack(v);
      const float step = d * in[r];
#pragma unroll
      for (int e = 0; e < N; ++e) {
        v[e] = fmaf(v[e], decay, step * p[e]);
        sum[r] = fmaf(v[e], q[e], sum[r]);
      }
      Unit<S, N>::store(state + (static_cast<i64>(first + r) * a.size + n) * S::kBytes, v);
    }
  }
#pragma unroll 1
  for (u32 distance = a.lanes >> 1; distance > 0; distance >>= 1) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], distance);
  }
  if (!here || lane != 0) return;
  const float skip = number<T>(a.skip, 0, head, 0.0f);
  char* const y = a.y.data + sequence * a.y.sequence + head * a.y.head;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r >= a.rows) continue;
    float value = fmaf(skip, in[r], sum[r]);
    if (a.z.data != nullptr) {
      const float gate = T::load(at(a.z, sequence, head) + (first + r) * T::kBytes);
      value *= times_sigmoid<T>(gate, gate);
    }
    T::store(y + (first + r) * T::kBytes, exists ? value : 0.0f);
  }
}

SELECTIVE_STATE_UPDATE_KERNELS(KERNEL)

}  // namespace state_space
}  // namespace precast
