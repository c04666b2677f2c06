// Shared by forward and backward on the GPU.
#pragma once

#include "../common/shifted.cuh"
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

// Gates and factors for one vector of the result: a vector of each, or two vectors in which they alternate.
template <class T>
struct Halves {
  Vector first, second;
  bool alternating, alone;

  // Those of word k of the result.
  DEVICE void unpack(int k, float (&gate)[T::kPerWord], float (&factor)[T::kPerWord]) const {
    if (!alternating) {
      T::unpack(first.word[k], gate);
      T::unpack(second.word[k], factor);
#pragma unroll
      for (int e = 0; e < T::kPerWord; ++e) factor[e] = alone ? 1.0f : factor[e];
      return;
    }
    float even[T::kPerWord], odd[T::kPerWord];
    T::unpack(k < 2 ? first.word[2 * k] : second.word[2 * k - 4], even);
    T::unpack(k < 2 ? first.word[2 * k + 1] : second.word[2 * k - 3], odd);
    gate[0] = even[0];
    factor[0] = T::kPerWord == 1 ? odd[0] : even[T::kPerWord - 1];
    if constexpr (T::kPerWord == 2) {
      gate[1] = odd[0];
      factor[1] = odd[1];
    }
  }

  // The inverse.
  DEVICE void pack(int k, const float (&gate)[T::kPerWord], const float (&factor)[T::kPerWord]) {
    if (!alternating) {
      first.word[k] = T::pack(gate);
      second.word[k] = T::pack(factor);
      return;
    }
    float even[T::kPerWord], odd[T::kPerWord];
    even[0] = gate[0];
    if constexpr (T::kPerWord == 2) {
      even[1] = factor[0];
      odd[0] = gate[1];
      odd[1] = factor[1];
    } else {
      odd[0] = factor[0];
    }
    (k < 2 ? first.word[2 * k] : second.word[2 * k - 4]) = T::pack(even);
    (k < 2 ? first.word[2 * k + 1] : second.word[2 * k - 3]) = T::pack(odd);
  }
};

// `column`: bytes before the vector in a row of the result.
template <class T, class Args>
DEVICE Halves<T> load_halves(const Args& a, i64 row, i64 column) {
  const bool alternating = a.step == 2, alone = a.factor == nullptr;
  const char* gate = a.gate + row * a.gate_stride + column * a.step;
  Halves<T> x = {load_constant(gate), {{0, 0, 0, 0}}, alternating, alone};
  if (alternating) {
    x.second = load_constant(gate + 16);
  } else if (!alone) {
    x.second = load_constant(a.factor + row * a.factor_stride + column);
  }
  return x;
}

}  // namespace activations
}  // namespace precast

// An entry point for blocks of 64 threads. `resident` is the number of threads that a multiprocessor should hold at a
// time. It sets the budget: 65536 / resident registers per thread.
#define KERNEL(name, Args, threads, resident, ...)                                         \
  extern "C" __global__ void __launch_bounds__(threads, PRECAST_BLOCKS(threads, resident)) \
      name(const precast::activations::Args a) {                                           \
    using namespace precast;                                                               \
    using namespace precast::activations;                                                  \
    __VA_ARGS__(a);                                                                        \
  }
