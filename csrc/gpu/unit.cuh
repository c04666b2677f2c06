// What a thread moves at a time.
#pragma once

#include "../gpu/device.cuh"

namespace precast {

// N neighbouring elements: 16 or 8 bytes, or one element anywhere.
template <class T, int N>
struct Unit {
  static constexpr int kWords = N * T::kBytes / 4;
  u32 word[kWords];
  DEVICE void load(const char* p) {
    if constexpr (kWords == 4) {
      const Vector v = ::precast::load(p);
#pragma unroll
      for (int k = 0; k < 4; ++k) word[k] = v.word[k];
    } else {
      asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(p));
    }
  }
  DEVICE void unpack(float (&v)[N]) const {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      float element[T::kPerWord];
      T::unpack(word[k], element);
#pragma unroll
      for (int e = 0; e < T::kPerWord; ++e) v[k * T::kPerWord + e] = element[e];
    }
  }
  static DEVICE void store(char* p, const float (&v)[N]) {
    u32 word[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      float element[T::kPerWord];
#pragma unroll
      for (int e = 0; e < T::kPerWord; ++e) element[e] = v[k * T::kPerWord + e];
      word[k] = T::pack(element);
    }
    if constexpr (kWords == 4) {
      ::precast::store(p, Vector{{word[0], word[1], word[2], word[3]}});
    } else {
      asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(word[0]), "r"(word[1]) : "memory");
    }
  }
};

template <class T>
struct Unit<T, 1> {
  float number;
  DEVICE void load(const char* p) { number = T::load(p); }
  DEVICE void unpack(float (&v)[1]) const { v[0] = number; }
  static DEVICE void store(char* p, const float (&v)[1]) { T::store(p, v[0]); }
};

// An element of a parameter, which may be float32 where T is narrower.
template <class T>
DEVICE float parameter(const char* from, i64 i, int wide) {
  return wide != 0 ? Float32::load(from + i * 4) : T::load(from + i * T::kBytes);
}

}  // namespace precast
