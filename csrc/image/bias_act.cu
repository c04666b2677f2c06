// Bias and activation in one pass on the GPU, and their gradients. See bias_act.cpp for which kernel serves which
// tensor.
//
//   y = clamp(gain f(x + b))     grad_x = grad gain f'(x + b) where y is not clamped, else 0
//   grad_b = sum of grad_x over all dimensions but the bias's
//
// Arithmetic is in float32, or in float64 for float64. A result is rounded once, and grad_b is summed before the
// rounding, in a fixed order: each block sums its part, and a second kernel adds the parts.
#include "../gpu/shifted.cuh"
#include "args.h"
#include "entries.h"

#define IMAGE_INLINE DEVICE
namespace precast {
namespace image {
DEVICE float exponential(float x) { return expf(x); }
DEVICE float exponential_minus_1(float x) { return expm1f(x); }
DEVICE float log_plus_1(float x) { return log1pf(x); }
DEVICE double exponential(double x) { return exp(x); }
DEVICE double exponential_minus_1(double x) { return expm1(x); }
DEVICE double log_plus_1(double x) { return log1p(x); }
}  // namespace image
}  // namespace precast
#include "curve.h"

namespace precast {
namespace image {

// Loads one element of any dtype as float or double.
template <class Real>
DEVICE Real load_element(const char* p, i64 i, int dtype) {
  if constexpr (sizeof(Real) == 8) {
    return reinterpret_cast<const double*>(p)[i];
  } else {
    if (dtype == kFloat32) return Float32::load(p + i * 4);
    return dtype == kFloat16 ? Float16::load(p + i * 2) : BFloat16::load(p + i * 2);
  }
}

template <class Real>
DEVICE void store_element(char* p, i64 i, Real v, int dtype) {
  if constexpr (sizeof(Real) == 8) {
    reinterpret_cast<double*>(p)[i] = v;
  } else {
    if (dtype == kFloat32) Float32::store(p + i * 4, v);
    if (dtype == kFloat16) Float16::store(p + i * 2, v);
    if (dtype == kBFloat16) BFloat16::store(p + i * 2, v);
  }
}

template <class Real>
DEVICE Real bias_at(const BiasActArgs& a, i64 channel) {
  return a.bias == nullptr ? Real(0) : load_element<Real>(a.bias, channel, a.bias_dtype);
}

// Comparisons with NaN are false, so NaN stays NaN, and a limit of NaN clamps nothing.
template <class Real>
DEVICE Real clamped(Real v, Real clamp) {
  return v >= clamp ? clamp : v <= -clamp ? -clamp : v;
}

template <class Real>
DEVICE bool at_clamp(Real v, Real clamp) {
  return v >= clamp || v <= -clamp;
}

// The parameters of a launch, in the precision of the arithmetic.
template <class Real>
struct Numbers {
  Real alpha, gain, clamp;
  int activation;
  bool of_output;
  DEVICE explicit Numbers(const BiasActArgs& a)
      : alpha(static_cast<Real>(a.alpha)),
        gain(static_cast<Real>(a.gain)),
        clamp(static_cast<Real>(a.clamp)),
        activation(a.activation),
        of_output(a.of_output != 0) {}

  // The piecewise linear activations; bias_act.cpp sets alpha to 1 for kLinear and to 0 for kRelu.
  DEVICE Real leaky(Real u) const {
    const Real below = activation == kRelu ? Real(0) : u * alpha;
    return clamped(gain * (u < 0 ? below : u), clamp);
  }
  DEVICE Real leaky_slope(Real y) const { return at_clamp(y, clamp) ? Real(0) : y > 0 ? gain : gain * alpha; }

  DEVICE Real value(Real u) const { return clamped(gain * curve(activation, u, alpha).value, clamp); }
  DEVICE Real slope(Real u) const {
    const Point<Real> at = curve(activation, u, alpha);
    return at_clamp(gain * at.value, clamp) ? Real(0) : gain * at.slope;
  }
};

// ---- vectors of 16 bytes, for the activations of straight lines ----

template <class T>
struct Leaky {
  static constexpr int kElements = T::kPerVector;
  const Numbers<float> numbers;
  const bool constant;
  DEVICE explicit Leaky(const BiasActArgs& a) : numbers(a), constant(a.saved == nullptr) {}

  // The bias has the dtype of x, or is float32.
  static DEVICE float bias(const BiasActArgs& a, i64 channel) {
    if (a.bias == nullptr) return 0.0f;
    return a.bias_dtype == kFloat32 ? Float32::load(a.bias + channel * 4) : T::load(a.bias + channel * T::kBytes);
  }

  DEVICE Vector value(const Vector& x, const float (&bias)[kElements]) const {
    return combine<T>(x, x, [&](int i, float v, float) { return numbers.leaky(v + bias[i]); });
  }

  // Adds to one sum for each element.
  DEVICE Vector gradient(const Vector& grad, const Vector& saved, float (&sum)[kElements]) const {
    return combine<T>(grad, saved, [&](int i, float g, float s) {
      const float result = g * (constant ? numbers.gain : numbers.leaky_slope(s));
      sum[i] += result;
      return result;
    });
  }
};

// ---- sums ----

DEVICE float exchanged(float v, int distance) { return __shfl_xor_sync(0xffffffffu, v, distance); }
DEVICE double exchanged(double v, int distance) {
  return __hiloint2double(__shfl_xor_sync(0xffffffffu, __double2hiint(v), distance),
                          __shfl_xor_sync(0xffffffffu, __double2loint(v), distance));
}

// The sum over a row of threads, which is 2^n threads up to a warp, or the whole block. At least the first thread of
// the row gets it.
template <class Real>
DEVICE Real sum_of_row(Real v) {
  __shared__ Real of_warps[kThreads / 32];
  const int lanes = blockDim.x < 32 ? blockDim.x : 32;
#pragma unroll 1
  for (int distance = lanes / 2; distance > 0; distance /= 2) v += exchanged(v, distance);
  if (blockDim.x <= 32) return v;
  if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x >> 5] = v;
  __syncthreads();
  v = of_warps[0];
#pragma unroll 1
  for (u32 i = 1; i < blockDim.x / 32; ++i) v += of_warps[i];
  return v;
}

// ---- the kernels ----

// The work of one thread: units a fixed distance apart. `at` is the index of a unit in the tensor. In planes, a thread
// handles a part of one row, and a block a part of one row or several short rows. In columns, a thread handles one unit
// of each row of its block. `left` counts down by `taken` per unit.
struct Work {
  i64 at, step, left, taken, channel, line;
  bool exists, by_columns;

  DEVICE Work(const BiasActArgs& a, int elements) : by_columns(a.by_columns != 0) {
    if (by_columns) {
      const u32 strips = static_cast<u32>(a.columns + blockDim.x - 1) / blockDim.x, chunk = blockIdx.x / strips;
      const i64 column = static_cast<i64>(blockIdx.x - chunk * strips) * blockDim.x + threadIdx.x;
      const i64 row = chunk * a.row_step + threadIdx.y, past = (chunk + 1) * a.row_step;
      exists = column < a.columns;
      at = row * a.columns + column;
      step = blockDim.y * a.columns;
      left = exists ? (past < a.rows ? past : a.rows) - row : 0;
      taken = blockDim.y;
      channel = column * elements;
      line = chunk;
    } else {
      const u32 segments = static_cast<u32>(a.row_step), group = blockIdx.x / segments;
      const u32 segment = blockIdx.x - group * segments, channels = static_cast<u32>(a.channels);
      const u32 row = group * blockDim.y + threadIdx.y, image = row / channels;  // a launch has fewer than 2^31 rows
      const i64 column = static_cast<i64>(segment) * (blockDim.x * kUnits) + threadIdx.x;
      exists = row < a.rows;
      at = row * a.columns + column;
      step = taken = blockDim.x;
      left = exists ? a.columns - column : 0;
      const i64 most = step * kUnits;
      if (left > most) left = most;
      channel = row - image * channels;
      line = static_cast<i64>(image) * segments + segment;
    }
  }
};

// Stores the sums of a block: one per row in planes, one per channel in columns.
template <class Real, int kElements>
DEVICE void store_sums(const BiasActArgs& a, const Work& work, const Real (&sums)[kElements]) {
  __shared__ Real shared[kThreads * kElements];
  Real* const parts = static_cast<Real*>(a.parts) + work.line * a.channels;
  if (!work.by_columns) {
    Real sum = sums[0];
#pragma unroll
    for (int e = 1; e < kElements; ++e) sum += sums[e];
    sum = sum_of_row(sum);
    if (work.exists && threadIdx.x == 0) parts[work.channel] = sum;
    return;
  }
  const u32 thread = threadIdx.y * blockDim.x + threadIdx.x, width = blockDim.x * kElements;
#pragma unroll
  for (int e = 0; e < kElements; ++e) shared[threadIdx.y * width + threadIdx.x * kElements + e] = sums[e];
  __syncthreads();
  const i64 channel = work.channel - threadIdx.x * kElements + thread;
  if (thread >= width || channel >= a.channels) return;
  Real sum = shared[thread];
#pragma unroll 1
  for (u32 i = 1; i < blockDim.y; ++i) sum += shared[i * width + thread];
  parts[channel] = sum;
}

// Piecewise linear activations in planes: a thread handles kUnits vectors of one row, without a loop. The loop of
// `vectors` costs 16-bit dtypes 6 points of the copy rate (H200).
template <class T, bool kBackward>
DEVICE void planes(const BiasActArgs& a) {
  constexpr int kElements = T::kPerVector;
  const Leaky<T> leaky(a);
  const u32 segments = static_cast<u32>(a.row_step), group = blockIdx.x / segments;
  const u32 segment = blockIdx.x - group * segments, channels = static_cast<u32>(a.channels);
  const u32 row = group * blockDim.y + threadIdx.y, image = row / channels;  // a launch has fewer than 2^31 rows
  const bool exists = row < a.rows;
  const i64 first = static_cast<i64>(segment) * (blockDim.x * kUnits) + threadIdx.x, begin = row * a.columns;
  const i64 channel = row - image * channels;
  Vector x[kUnits], saved[kUnits];
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const i64 column = first + j * blockDim.x;
    if (!exists || column >= a.columns) continue;
    x[j] = load(a.x + (begin + column) * 16);
    if (kBackward && a.saved != nullptr) saved[j] = load(a.saved + (begin + column) * 16);
  }
  const float one_bias = !kBackward && exists ? leaky.bias(a, channel) : 0.0f;
  float bias[kElements], sums[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    bias[e] = one_bias;
    sums[e] = 0.0f;
  }
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const i64 column = first + j * blockDim.x;
    if (!exists || column >= a.columns) continue;
    store(a.y + (begin + column) * 16, kBackward ? leaky.gradient(x[j], saved[j], sums) : leaky.value(x[j], bias));
  }
  if constexpr (kBackward) {
    if (a.parts == nullptr) return;
    float sum = sums[0];
#pragma unroll
    for (int e = 1; e < kElements; ++e) sum += sums[e];
    sum = sum_of_row(sum);
    const i64 line = static_cast<i64>(image) * segments + segment;
    if (exists && threadIdx.x == 0) static_cast<float*>(a.parts)[line * a.channels + channel] = sum;
  }
}

// Piecewise linear activations, by vectors of 16 bytes. kUnits vectors are loaded before the first is used.
template <class T, bool kBackward>
DEVICE void vectors(const BiasActArgs& a) {
  if constexpr (T::kBytes == 2) {
    if (a.by_columns == 0) return planes<T, kBackward>(a);
  }
  constexpr int kElements = T::kPerVector;
  const Leaky<T> leaky(a);
  Work work(a, kElements);
  float bias[kElements], sums[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) bias[e] = sums[e] = 0.0f;
  bool begins = true;  // the bias is loaded after the first vectors
#pragma unroll 1
  for (; work.left > 0; work.left -= work.taken * kUnits) {
    Vector x[kUnits], saved[kUnits];
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      if (work.left <= j * work.taken) continue;
      x[j] = load(a.x + (work.at + j * work.step) * 16);
      if (kBackward && a.saved != nullptr) saved[j] = load(a.saved + (work.at + j * work.step) * 16);
    }
    if (!kBackward && begins) {
      bias[0] = leaky.bias(a, work.channel);
#pragma unroll
      for (int e = 1; e < kElements; ++e) bias[e] = work.by_columns ? leaky.bias(a, work.channel + e) : bias[0];
      begins = false;
    }
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      if (work.left <= j * work.taken) continue;
      store(a.y + (work.at + j * work.step) * 16,
            kBackward ? leaky.gradient(x[j], saved[j], sums) : leaky.value(x[j], bias));
    }
    work.at += work.step * kUnits;
  }
  if constexpr (kBackward) {
    if (a.parts != nullptr) store_sums(a, work, sums);
  }
}

// Any activation and dtype, one element at a time.
template <class Real, bool kBackward>
DEVICE void any(const BiasActArgs& a) {
  const Numbers<Real> numbers(a);
  Work work(a, 1);
  const Real bias = work.left > 0 ? bias_at<Real>(a, work.channel) : Real(0);
  Real sums[1] = {0};
#pragma unroll 1
  for (; work.left > 0; work.left -= work.taken, work.at += work.step) {
    const Real x = load_element<Real>(a.x, work.at, a.dtype);
    if constexpr (kBackward) {
      Real slope = numbers.gain;
      if (a.saved != nullptr) {
        const Real saved = load_element<Real>(a.saved, work.at, a.dtype);
        slope = numbers.of_output ? numbers.leaky_slope(saved) : numbers.slope(saved + bias);
      }
      store_element(a.y, work.at, x * slope, a.dtype);
      sums[0] += x * slope;
    } else {
      store_element(a.y, work.at, numbers.value(x + bias), a.dtype);
    }
  }
  if constexpr (kBackward) {
    if (a.parts != nullptr) store_sums(a, work, sums);
  }
}

// Planes whose size is no multiple of a vector, but is one vector or more: a block has kUnits vectors for each thread,
// wherever planes begin. A vector has elements of one plane, then perhaps of the next.
template <class T>
struct FlatPart {
  static constexpr u32 kElements = T::kPerVector, kVectors = kFlatThreads * kUnits, kBlock = kVectors * kElements;
  const BiasActArgs& a;
  const FlatArgs& of;
  const i64 begin;   // the first element of the block, in the tensor
  const u32 held;    // the elements of the block
  const u32 plane;   // the plane of the first,
  const u32 offset;  // and its place there

  DEVICE explicit FlatPart(const FlatArgs& args)
      : a(args.planes),
        of(args),
        begin(static_cast<i64>(blockIdx.x) * kBlock),
        held(static_cast<u32>(a.rows * a.columns - begin < kBlock ? a.rows * a.columns - begin : kBlock)),
        plane(static_cast<u32>(divided(begin, a.columns))),
        offset(static_cast<u32>(begin - plane * a.columns)) {}

  DEVICE Vector load_from(const char* tensor, u32 vector) const {
    const char* const block = tensor + begin * T::kBytes;
    return (vector + 1) * kElements <= held ? load(block + vector * 16)
                                            : load_within<T>(block + vector * 16, block, block + held * T::kBytes);
  }

  DEVICE void store_to(u32 vector, const Vector& v) const {
    char* const to = a.y + begin * T::kBytes + vector * 16;
    if ((vector + 1) * kElements <= held) return store(to, v);
    for_elements<T>(v, [&](u32 e, float value) {
      if (vector * kElements + e < held) T::store(to + e * T::kBytes, value);
    });
  }

  DEVICE u32 channel_of(u32 row) const { return row - quotient(row, of.channels) * of.channels.divisor; }

  // Adds up the vectors' sums: first[v] of the elements of the plane in which vector v begins, second[v] of the next.
  DEVICE void store_sums(const float* first, const float* second) const {
    const u32 lanes = static_cast<u32>(of.sharing), groups = kFlatThreads / lanes, lane = threadIdx.x & (lanes - 1);
    const u32 size = static_cast<u32>(a.columns), planes = quotient(offset + held + size - 1, of.columns);
#pragma unroll 1
    for (u32 from = 0; from < planes; from += groups) {  // all threads of a warp, which exchange sums
      const u32 i = from + threadIdx.x / lanes, after = (i + 1) * size - offset;
      const u32 start = i == 0 ? 0 : i * size - offset, past = after < held ? after : held;
      float sum = 0.0f;
      if (i < planes) {
#pragma unroll 1
        for (u32 v = start / kElements + lane; v * kElements < past; v += lanes) {
          sum += v * kElements < start ? second[v] : first[v];
        }
      }
#pragma unroll 1
      for (u32 distance = lanes / 2; distance > 0; distance /= 2) sum += exchanged(sum, distance);
      if (i >= planes || lane != 0) continue;
      const u32 row = plane + i, image = quotient(row, of.channels);
      const i64 pieces = a.row_step, piece = blockIdx.x - row * a.columns / kBlock;
      float* to = static_cast<float*>(a.parts) + (image * pieces + piece) * a.channels + channel_of(row);
      *to = sum;
      if (after > held) continue;  // the next block has more of the plane
      for (i64 other = piece + 1; other < pieces; ++other) *(to += a.channels) = 0.0f;
    }
  }
};

template <class T, bool kBackward>
DEVICE void flat(const FlatArgs& of) {
  constexpr u32 kElements = T::kPerVector;
  const BiasActArgs& a = of.planes;
  const Leaky<T> leaky(a);
  const FlatPart<T> part(of);
  __shared__ float sums[kBackward ? part.kVectors : 1], second[kBackward ? part.kVectors : 1];
  Vector x[kUnits], saved[kUnits];
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const u32 vector = threadIdx.x + j * kFlatThreads;
    if (vector * kElements >= part.held) continue;
    x[j] = part.load_from(a.x, vector);
    if (kBackward && a.saved != nullptr) saved[j] = part.load_from(a.saved, vector);
  }
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const u32 vector = threadIdx.x + j * kFlatThreads, place = part.offset + vector * kElements;
    if (vector * kElements >= part.held) continue;
    const u32 ahead = quotient(place, of.columns), left = (ahead + 1) * of.columns.divisor - place;
    if constexpr (kBackward) {
      float result[kElements] = {}, sum[2] = {0.0f, 0.0f};
      part.store_to(vector, leaky.gradient(x[j], saved[j], result));
      if (a.parts == nullptr) continue;
#pragma unroll
      for (u32 e = 0; e < kElements; ++e) sum[0] += result[e];
      if (left < kElements) {
        sum[0] = 0.0f;
#pragma unroll
        for (u32 e = 0; e < kElements; ++e) (e < left ? sum[0] : sum[1]) += result[e];
      }
      sums[vector] = sum[0];
      second[vector] = sum[1];
    } else {
      const u32 channel = part.channel_of(part.plane + ahead),
                next = channel + 1 < of.channels.divisor ? channel + 1 : 0;
      const float before = leaky.bias(a, channel), after = left < kElements ? leaky.bias(a, next) : before;
      float bias[kElements];
#pragma unroll
      for (u32 e = 0; e < kElements; ++e) bias[e] = e < left ? before : after;
      part.store_to(vector, leaky.value(x[j], bias));
    }
  }
  if constexpr (kBackward) {
    if (a.parts == nullptr) return;
    __syncthreads();
    part.store_sums(sums, second);
  }
}

// A block sums 32 channels, 32 lines at a time.
template <class Real>
DEVICE void sum_lines(const SumArgs& a) {
  __shared__ Real shared[32][33];
  const i64 channel = static_cast<i64>(blockIdx.x) * 32 + threadIdx.x;
  const Real* parts = static_cast<const Real*>(a.parts);
  Real sum = 0;
  if (channel < a.channels) {
#pragma unroll 2
    for (i64 line = threadIdx.y; line < a.lines; line += 32) sum += parts[line * a.channels + channel];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= a.channels) return;
#pragma unroll 1
  for (int i = 1; i < 32; ++i) sum += shared[i][threadIdx.x];
  store_element<Real>(a.result, channel, sum, a.dtype);
}

BIAS_ACT_KERNELS(KERNEL)

}  // namespace image
}  // namespace precast
