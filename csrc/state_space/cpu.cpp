// A token of a state-space model, sixteen lanes at a time. Compiled once per CPU level.
#include "cpu.h"

#include <math.h>

#include "../activations/functions.h"

namespace precast::state_space::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

template <class T>
PRECAST_INLINE float number(const Numbers& from, int64_t sequence, int64_t head) {
  if (from.data == nullptr) return 0.0f;
  const int64_t at = sequence * from.sequence + head * from.head;
  if (from.wide) return reinterpret_cast<const float*>(from.data)[at];
  return first_lane(load_part(reinterpret_cast<const T*>(from.data) + at, 1).part[0]);
}

template <class T>
PRECAST_INLINE T* at(const Vectors& from, int64_t sequence, int64_t head) {
  return reinterpret_cast<T*>(from.data + sequence * from.sequence + head * from.head);
}

template <class T, class S>
void update_head(const UpdateArgs& a, int64_t sequence, int64_t head) {
  T* const y = at<T>(a.y, sequence, head);
  int64_t slot = sequence;
  if (a.slots != nullptr) {
    const int64_t place = sequence * a.slot_stride;
    slot = a.long_slots ? reinterpret_cast<const int64_t*>(a.slots)[place]
                        : reinterpret_cast<const int32_t*>(a.slots)[place];
  }
  if (slot < 0) {
    for (int64_t p = 0; p < a.rows; p += kLanes) store_upto(y + p, broadcast(0.0f), a.rows - p);
    return;
  }
  float d = number<T>(a.dt, sequence, head) + number<T>(a.dt_bias, 0, head);
  if (a.softplus && d <= 20.0f) d = log1pf(expf(d));
  const Floats decay = broadcast(expf(d * number<T>(a.decay, 0, head)));
  const Floats skip = broadcast(number<T>(a.skip, 0, head));
  const T *b = at<T>(a.b, sequence, head / a.group), *c = at<T>(a.c, sequence, head / a.group);
  const T *x = at<T>(a.x, sequence, head), *z = a.z.data != nullptr ? at<T>(a.z, sequence, head) : nullptr;
  S* state = reinterpret_cast<S*>(a.state + slot * a.state_slot + head * a.state_head);
  for (int64_t first = 0; first < a.rows; first += kLanes) {
    const int64_t rest = a.rows - first, count = rest < kLanes ? rest : kLanes;
    const Floats in = load_upto(x + first, count);
    float inputs[kLanes], sums[kLanes] = {};
    store(inputs, in);
    for (int64_t r = 0; r < count; ++r, state += a.size) {
      const Floats step = broadcast(d * inputs[r]);
      Floats sum = broadcast(0.0f);
      for (int64_t n = 0; n < a.size; n += kLanes) {
        const int64_t left = a.size - n;
        const Floats v = fma(load_upto(state + n, left), decay, step * load_upto(b + n, left));
        store_upto(state + n, v, left);
        sum = fma(v, load_upto(c + n, left), sum);
      }
      sums[r] = ::precast::PRECAST_CPU_LEVEL::sum(sum);
    }
    Floats value = fma(skip, in, load(static_cast<const float*>(sums)));
    if (z != nullptr) {
      const Floats gate = load_upto(z + first, count);
      value = value * (gate * sigmoid(gate).below);
    }
    store_upto(y + first, value, count);
  }
}

}  // namespace

void update(const UpdateRows& work, int64_t begin, int64_t end) {
  const UpdateArgs& a = work.args;
  const int64_t heads = a.heads.divisor;
  with_type(work.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = begin; i < end; ++i) {
      if (work.wide) {
        update_head<T, float>(a, i / heads, i % heads);
      } else {
        update_head<T, T>(a, i / heads, i % heads);
      }
    }
  });
}

}  // namespace precast::state_space::PRECAST_CPU_LEVEL
