// Prelude of all device code: dtypes, 16-byte vectors, reductions. It includes nothing, so that any version of NVRTC
// compiles it in milliseconds; nvcc compiles it as well. It is plain C++17 with a few lines of PTX.
#pragma once

#if defined(__CUDA_ARCH__)
#define PRECAST_ARCH __CUDA_ARCH__
#else
#define PRECAST_ARCH 0  // the host pass of nvcc, which only looks at declarations
#endif

// Maximum threads and blocks per multiprocessor, and how many blocks of `threads` hold `wanted` threads.
#if PRECAST_ARCH == 750
#define PRECAST_MAX_RESIDENT 1024
#elif PRECAST_ARCH / 100 == 12 || PRECAST_ARCH == 1100 || PRECAST_ARCH == 1010 || \
    (PRECAST_ARCH > 800 && PRECAST_ARCH < 900)
#define PRECAST_MAX_RESIDENT 1536
#else
#define PRECAST_MAX_RESIDENT 2048
#endif
#if PRECAST_ARCH == 750 || (PRECAST_ARCH > 800 && PRECAST_ARCH < 890)
#define PRECAST_MAX_BLOCKS 16
#elif PRECAST_MAX_RESIDENT == 1536
#define PRECAST_MAX_BLOCKS 24
#else
#define PRECAST_MAX_BLOCKS 32
#endif
#define PRECAST_LESSER(a, b) ((a) < (b) ? (a) : (b))
#define PRECAST_BLOCKS(threads, wanted) \
  PRECAST_LESSER(PRECAST_LESSER(wanted, PRECAST_MAX_RESIDENT) / (threads), PRECAST_MAX_BLOCKS)

#define DEVICE __device__ __forceinline__

namespace precast {

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// Avoids the slow 64-bit division if both numbers fit in 32 bits.
DEVICE u64 divided(u64 a, u64 b) {
  if ((a | b) >> 32 == 0) return static_cast<u32>(a) / static_cast<u32>(b);
  return a / b;
}

// ---- memory ----
// No cache hints: on an H200 every load hint cost 1 to 6 % of the bandwidth. The volatile statements keep loads in
// place, ahead of the arithmetic, so that several are in flight.

struct alignas(16) Vector {
  u32 word[4];
};

DEVICE Vector load(const char* p) {
  Vector v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p));
  return v;
}

// For memory that no thread of the launch writes to.
DEVICE Vector load_constant(const char* p) {
  Vector v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p));
  return v;
}

DEVICE void store(char* p, Vector v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
               "r"(v.word[3])
               : "memory");
}

// For results that should leave the caches to data that is read again. Elsewhere it gains nothing.
DEVICE void store_streaming(char* p, Vector v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
               "r"(v.word[3])
               : "memory");
}

// Prefetches memory that a later block will read into the L2 cache. Start and length are multiples of 16 bytes.
DEVICE void prefetch(const char* p, u32 bytes) {
#if PRECAST_ARCH >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// ---- dtypes ----
// Each dtype has kPerWord elements in 32 bits and kPerVector in 16 bytes; an element has kBytes. unpack and pack
// convert a word; load and store access one element. Rounding is to nearest even; NaN stays NaN.

struct Float32 {
  static constexpr int kBytes = 4, kPerWord = 1, kPerVector = 4;
  static DEVICE void unpack(u32 word, float (&v)[1]) { v[0] = __uint_as_float(word); }
  static DEVICE u32 pack(const float (&v)[1]) { return __float_as_uint(v[0]); }
  static DEVICE float load(const char* p) { return *reinterpret_cast<const float*>(p); }
  static DEVICE void store(char* p, float v) { *reinterpret_cast<float*>(p) = v; }
  static DEVICE float round(float v) { return v; }
};

struct Float16 {
  static constexpr int kBytes = 2, kPerWord = 2, kPerVector = 8;
  static DEVICE float widen(u16 bits) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
  }
  static DEVICE u16 narrow(float v) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
  }
  static DEVICE void unpack(u32 word, float (&v)[2]) {
    v[0] = widen(static_cast<u16>(word & 0xffffu));
    v[1] = widen(static_cast<u16>(word >> 16));
  }
  static DEVICE u32 pack(const float (&v)[2]) {
#if PRECAST_ARCH >= 800
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(v[1]), "f"(v[0]));
    return word;
#else
    return static_cast<u32>(narrow(v[0])) | static_cast<u32>(narrow(v[1])) << 16;
#endif
  }
#if PRECAST_ARCH >= 800
  // The larger numbers of two words. NaN is ignored.
  static DEVICE u32 larger(u32 a, u32 b) {
    u32 word;
    asm("max.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
  }
  // a * b + c, rounded once.
  static DEVICE u32 fma(u32 a, u32 b, u32 c) {
    u32 word;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(c));
    return word;
  }
#endif
  static DEVICE float load(const char* p) { return widen(*reinterpret_cast<const u16*>(p)); }
  static DEVICE void store(char* p, float v) { *reinterpret_cast<u16*>(p) = narrow(v); }
  static DEVICE float round(float v) { return widen(narrow(v)); }
};

struct BFloat16 {
  static constexpr int kBytes = 2, kPerWord = 2, kPerVector = 8;
  static DEVICE u32 narrow(float v) {
#if PRECAST_ARCH >= 800
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
#else
    // There is no such conversion before sm_80: add half of the last kept place, ties to even. A NaN with a full
    // mantissa would carry over into zero, so NaN is handled separately.
    const u32 bits = __float_as_uint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
#endif
  }
  static DEVICE void unpack(u32 word, float (&v)[2]) {
    v[0] = __uint_as_float(word << 16);
    v[1] = __uint_as_float(word & 0xffff0000u);
  }
  static DEVICE u32 pack(const float (&v)[2]) {
#if PRECAST_ARCH >= 800
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(v[1]), "f"(v[0]));
    return word;
#else
    return narrow(v[0]) | narrow(v[1]) << 16;
#endif
  }
#if PRECAST_ARCH >= 800
  // The larger numbers of two words. NaN is ignored.
  static DEVICE u32 larger(u32 a, u32 b) {
    u32 word;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
  }
  // a * b + c, rounded once.
  static DEVICE u32 fma(u32 a, u32 b, u32 c) {
    u32 word;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(c));
    return word;
  }
#endif
  static DEVICE float load(const char* p) {
    return __uint_as_float(static_cast<u32>(*reinterpret_cast<const u16*>(p)) << 16);
  }
  static DEVICE void store(char* p, float v) { *reinterpret_cast<u16*>(p) = static_cast<u16>(narrow(v)); }
  static DEVICE float round(float v) { return __uint_as_float(narrow(v) << 16); }
};

// Calls body(i, value) for each element of a vector as float, in order.
template <class T, class Body>
DEVICE void for_elements(const Vector& v, const Body& body) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float element[T::kPerWord];
    T::unpack(v.word[k], element);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) body(k * T::kPerWord + e, element[e]);
  }
}

// Applies body(i, x_i, y_i) to each element and rounds once.
template <class T, class Body>
DEVICE Vector combine(const Vector& x, const Vector& y, const Body& body) {
  Vector result;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float a[T::kPerWord], b[T::kPerWord];
    T::unpack(x.word[k], a);
    T::unpack(y.word[k], b);
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) a[e] = body(k * T::kPerWord + e, a[e], b[e]);
    result.word[k] = T::pack(a);
  }
  return result;
}

// ---- sums over the threads that share a row ----

DEVICE float infinity() { return __uint_as_float(0x7f800000u); }

// 2^power with one instruction; the relative error is about 2^-22. Minus infinity, and results below 2^-126, give 0.
DEVICE float exp2_of(float power) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(power));
  return result;
}

// 1 / value with one instruction; the relative error is about 2^-23. Results below 2^-126 become 0.
DEVICE float reciprocal_of(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// 1 / (1 + exp(-z)), and x times that. For numbers of 16 bits this takes four instructions instead of twenty, with an
// error of 2^-17 where the result is small for its x and of 2^-21 elsewhere: next to half a unit of float16, 2^-12.
template <class T>
DEVICE float sigmoid_of(float z) {
  if constexpr (T::kBytes == 4) return 1.0f / (1.0f + expf(-z));
  return reciprocal_of(1.0f + exp2_of(z * -1.44269504f));
}

template <class T>
DEVICE float times_sigmoid(float x, float z) {
  if constexpr (T::kBytes == 4) return x / (1.0f + expf(-z));
  return x * sigmoid_of<T>(z);
}

DEVICE float warp_sum(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

// The sum over the lanes of a narrow row, a power of two below 32. The other lanes of the warp have other rows.
DEVICE float narrow_sum(float v) {
#pragma unroll 1
  for (u32 distance = blockDim.x >> 1; distance > 0; distance >>= 1) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

// Whether the threads take a step that some rows need and that requires all threads of a row. The rows of a warp take
// it together; rows that do not need it keep their values.
DEVICE bool taken_together(bool needed) { return blockDim.x < 32 ? __ballot_sync(0xffffffffu, needed) != 0 : needed; }

// The sum over blockDim.x threads (whole warps up to 1024 threads, or a power of two below 32), returned to each of
// them. In a block of several rows (blockDim.y > 1) each row has at most one warp. One barrier: every thread adds the
// warps' sums itself, in the same order. `shared` holds 32 floats and must not be written again before another barrier.
// Set kNarrow if there may be fewer than 32 threads.
template <bool kNarrow = true>
DEVICE float row_sum(float v, float* shared) {
  if (kNarrow && blockDim.x < 32) return narrow_sum(v);
  v = warp_sum(v);
  if (blockDim.x == 32) return v;
  const u32 warps = blockDim.x >> 5, padded = (warps + 3) & ~3u;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  if (threadIdx.x >= warps && threadIdx.x < padded) shared[threadIdx.x] = 0.0f;
  __syncthreads();
  const float4* quads = reinterpret_cast<const float4*>(shared);
  float sum = 0.0f;
  for (u32 i = 0; i < padded / 4; ++i) {
    const float4 q = quads[i];
    sum = (((sum + q.x) + q.y) + q.z) + q.w;
  }
  return sum;
}

}  // namespace precast

// Defines one entry point of a family's list (entry_points.h), in the family's namespace. The launch bounds limit a
// thread to 65536 / `resident` registers.
#define KERNEL(name, Args, threads, resident, registers, shared, ...)                                           \
  extern "C" __global__ void __launch_bounds__(threads, PRECAST_BLOCKS(threads, resident)) name(const Args a) { \
    __VA_ARGS__(a);                                                                                             \
  }
