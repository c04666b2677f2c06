// Weights and biases of the norms, which may be float32 where the rows are narrower.
#pragma once

#include "../gpu/shifted.cuh"

namespace precast {

// The number for one element of a row.
template <class T>
DEVICE float column(const char* from, i64 i, bool wide) {
  return T::kBytes == 2 && wide ? Float32::load(from + i * 4) : T::load(from + i * T::kBytes);
}

// The numbers for one vector of a row. kMayBeWide: kept as float, so that one kernel serves both dtypes. A kernel of
// its own for float32 weights would take as much code again.
template <class T, bool kMayBeWide>
struct Columns {
  static constexpr bool kFloats = kMayBeWide && T::kBytes == 2;
  float number[kFloats ? T::kPerVector : 1];
  Vector v;

  // Those of vector i of the row that begins at `from`.
  DEVICE void load(const char* from, i64 i, bool wide) {
    if constexpr (kFloats) {
      if (wide) {
        set<Float32>(0, load_constant(from + i * 32));
        set<Float32>(4, load_constant(from + i * 32 + 16));
      } else {
        set<T>(0, load_constant(from + i * 16));
      }
    } else {
      v = load_constant(from + i * 16);
    }
  }

  DEVICE void fill(float value) {
    if constexpr (kFloats) {
#pragma unroll
      for (int e = 0; e < T::kPerVector; ++e) number[e] = value;
    } else {
      float element[T::kPerWord];
#pragma unroll
      for (int e = 0; e < T::kPerWord; ++e) element[e] = value;
      const u32 word = T::pack(element);
      v = Vector{{word, word, word, word}};
    }
  }

  // Those of vector k of a row that begins anywhere, one by one; zeros outside of the row.
  DEVICE void load_shifted(const char* from, u32 k, const Shifted<T>& at, bool wide) {
    if constexpr (kFloats) {
#pragma unroll
      for (int e = 0; e < T::kPerVector; ++e) {
        number[e] = at.holds(k, e, at.bytes) ? column<T>(from, at.column(k, e), wide) : 0.0f;
      }
    } else {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float element[T::kPerWord];
#pragma unroll
        for (int e = 0; e < T::kPerWord; ++e) {
          const int i = w * T::kPerWord + e;
          element[e] = at.holds(k, i, at.bytes) ? T::load(from + at.column(k, i) * T::kBytes) : 0.0f;
        }
        v.word[w] = T::pack(element);
      }
    }
  }

  DEVICE void load_or_fill(const char* from, i64 i, bool wide, float absent) {
    if (from != nullptr) {
      load(from, i, wide);
    } else {
      fill(absent);
    }
  }

  // Those of word k of the vector.
  DEVICE void unpack(int k, float (&to)[T::kPerWord]) const {
    if constexpr (kFloats) {
#pragma unroll
      for (int e = 0; e < T::kPerWord; ++e) to[e] = number[k * T::kPerWord + e];
    } else {
      T::unpack(v.word[k], to);
    }
  }

 private:
  template <class From>
  DEVICE void set(int first, const Vector& from) {
    for_elements<From>(from, [&](int e, float value) { number[first + e] = value; });
  }
};

}  // namespace precast
