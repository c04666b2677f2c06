// Weights and biases of the norms: in the dtype of the rows, or in float32 (kWide).
#pragma once

#include "device.cuh"

namespace precast {

// The numbers for one vector of a row.
template <class T, bool kWide>
struct Columns {
  static constexpr int kVectors = kWide && T::kBytes == 2 ? 2 : 1, kBytes = kVectors == 2 ? 4 : T::kBytes;
  Vector v[kVectors];

  // Those of vector i of the row that begins at `from`.
  DEVICE void load(const char* from, i64 i) {
#pragma unroll
    for (int n = 0; n < kVectors; ++n) v[n] = load_constant(from + (i * kVectors + n) * 16);
  }

  DEVICE void fill(float value) {
    float element[T::kPerWord];
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) element[e] = value;
    const u32 word = kVectors == 2 ? __float_as_uint(value) : T::pack(element);
#pragma unroll
    for (int n = 0; n < kVectors; ++n) v[n] = Vector{{word, word, word, word}};
  }

  DEVICE void load_or_fill(const char* from, i64 i, float absent) {
    if (from != nullptr) {
      load(from, i);
    } else {
      fill(absent);
    }
  }

  // Those of word k of the vector.
  DEVICE void unpack(int k, float (&to)[T::kPerWord]) const {
    if constexpr (kVectors == 2) {
      to[0] = __uint_as_float(v[k / 2].word[2 * k % 4]);
      to[1] = __uint_as_float(v[k / 2].word[2 * k % 4 + 1]);
    } else {
      T::unpack(v[0].word[k], to);
    }
  }

  static DEVICE float element(const char* from, i64 i) {
    if constexpr (kVectors == 2) return Float32::load(from + i * 4);
    return T::load(from + i * T::kBytes);
  }
};

}  // namespace precast
