// Bias and activation in one pass on the CPU, and their gradients. Compiled once per CPU level.
//
// Piecewise linear activations are computed in the precision of the GPU kernels, by loops that compilers vectorize. The
// others are computed in float64, one element at a time, and rounded once.
#include <math.h>

#include "cpu.h"
#include "numbers.h"

#define IMAGE_INLINE PRECAST_INLINE
namespace precast {
namespace image {
// All are static, so that each level has its own. exp itself would need a newer C library than expm1 does.
PRECAST_INLINE double exponential(double x) { return 1.0 / (1.0 + expm1(-x)); }  // of arguments up to zero
PRECAST_INLINE double exponential_minus_1(double x) { return expm1(x); }
PRECAST_INLINE double log_plus_1(double x) { return log1p(x); }
}  // namespace image
}  // namespace precast
#include "curve.h"

namespace precast::image::PRECAST_CPU_LEVEL {
namespace {

// Elements per step, so that the buffers stay in the L1 cache.
constexpr int64_t kChunk = 512;

// One buffer of elements: x or the gradient, what was saved, and the bias of each element or of all.
template <class Real>
struct Part {
  alignas(64) Real x[kChunk], saved[kChunk], bias[kChunk];
  int64_t count;
};

template <class Real>
PRECAST_INLINE Real clamped(Real v, Real clamp) {
  return v >= clamp ? clamp : v <= -clamp ? -clamp : v;
}

template <class Real>
PRECAST_RARE void leaky_values(const BiasActWork& work, Part<Real>& part) {
  const Real gain = static_cast<Real>(work.gain), clamp = static_cast<Real>(work.clamp);
  const Real alpha = static_cast<Real>(work.alpha);
  const bool flat = work.activation == kRelu;
  for (int64_t i = 0; i < part.count; ++i) {
    const Real u = part.x[i] + part.bias[i], below = flat ? Real(0) : u * alpha;
    part.x[i] = clamped(gain * (u < 0 ? below : u), clamp);
  }
}

template <class Real>
PRECAST_RARE void leaky_gradients(const BiasActWork& work, Part<Real>& part) {
  const Real gain = static_cast<Real>(work.gain), clamp = static_cast<Real>(work.clamp);
  const Real low = gain * static_cast<Real>(work.alpha);
  for (int64_t i = 0; i < part.count; ++i) {
    const Real y = part.saved[i], slope = y > 0 ? gain : low;
    part.x[i] *= y >= clamp || y <= -clamp ? Real(0) : slope;
  }
}

// The same from x and the bias, computed as leaky_values() does.
template <class Real>
PRECAST_RARE void leaky_slopes(const BiasActWork& work, Part<Real>& part) {
  const Real gain = static_cast<Real>(work.gain), clamp = static_cast<Real>(work.clamp);
  const Real alpha = static_cast<Real>(work.alpha);
  const bool flat = work.activation == kRelu;
  for (int64_t i = 0; i < part.count; ++i) {
    const Real u = part.saved[i] + part.bias[i], below = flat ? Real(0) : u * alpha;
    const Real v = gain * (u < 0 ? below : u), slope = gain * (u > 0 ? Real(1) : alpha);
    part.x[i] *= v >= clamp || v <= -clamp ? Real(0) : slope;
  }
}

template <class Real>
PRECAST_RARE void curved(const BiasActWork& work, Part<Real>& part) {
  for (int64_t i = 0; i < part.count; ++i) {
    const double from = work.backward ? part.saved[i] : part.x[i];
    const Point<double> at = curve<double>(work.activation, from + part.bias[i], work.alpha);
    const double v = work.gain * at.value;
    if (!work.backward) {
      part.x[i] = static_cast<Real>(clamped(v, work.clamp));
    } else {
      const bool clamps = v >= work.clamp || v <= -work.clamp;
      part.x[i] = static_cast<Real>(clamps ? 0.0 : part.x[i] * (work.gain * at.slope));
    }
  }
}

template <class Real>
PRECAST_INLINE void compute(const BiasActWork& work, Part<Real>& part) {
  if (work.activation > kLeakyRelu) {
    curved(work, part);
  } else if (!work.backward) {
    leaky_values(work, part);
  } else if (work.saved != nullptr) {
    work.of_output ? leaky_gradients(work, part) : leaky_slopes(work, part);
  } else {
    for (int64_t i = 0; i < part.count; ++i) part.x[i] *= static_cast<Real>(work.gain);
  }
}

template <class Real>
PRECAST_INLINE Real bias_at(const BiasActWork& work, int64_t channel) {
  Real bias[kLanes] = {};
  if (work.bias == nullptr) return 0;
  with_number(work.bias_dtype, [&](auto zero) {
    using B = decltype(zero);
    if constexpr (sizeof(typename RealOf<B>::Type) == sizeof(Real)) {
      read(static_cast<const B*>(work.bias) + channel, 1, bias);
    }
  });
  return bias[0];
}

template <class Real>
PRECAST_INLINE void biases_at(const BiasActWork& work, int64_t channel, int64_t count, Real* to) {
  with_number(work.bias_dtype, [&](auto zero) {
    using B = decltype(zero);
    if constexpr (sizeof(typename RealOf<B>::Type) == sizeof(Real)) {
      read(static_cast<const B*>(work.bias) + channel, count, to);
    }
  });
}

template <class T>
void pieces(const BiasActWork& work, int64_t begin, int64_t end) {
  using Real = typename RealOf<T>::Type;
  const T *x = static_cast<const T*>(work.x), *saved = static_cast<const T*>(work.saved);
  T* y = static_cast<T*>(work.y);
  const int64_t in_row = pieces_of(work.columns);
  Part<Real> part;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t row = index / in_row, first = (index - row * in_row) * kPiece;
    const int64_t last = smaller(work.columns, first + kPiece);
    const Real bias = bias_at<Real>(work, row % work.channels);
    for (int64_t i = 0; i < kChunk; ++i) part.bias[i] = bias;
    double sum = 0;
    for (int64_t column = first; column < last; column += kChunk) {
      const int64_t at = row * work.columns + column;
      part.count = smaller(kChunk, last - column);
      read(x + at, part.count, part.x);
      if (work.saved != nullptr) read(saved + at, part.count, part.saved);
      compute(work, part);
      if (work.parts != nullptr) {
        for (int64_t i = 0; i < part.count; ++i) sum += static_cast<double>(part.x[i]);
      }
      write(y + at, part.count, static_cast<const Real*>(part.x));
    }
    if (work.parts != nullptr) work.parts[index] = sum;
  }
}

template <class T>
void chunks(const BiasActWork& work, int64_t begin, int64_t end) {
  using Real = typename RealOf<T>::Type;
  const T *x = static_cast<const T*>(work.x), *saved = static_cast<const T*>(work.saved);
  T* y = static_cast<T*>(work.y);
  Part<Real> part;
  for (int64_t i = 0; i < kChunk; ++i) part.bias[i] = 0;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t last = smaller(work.rows, (chunk + 1) * work.chunk_rows);
    double* sums = work.parts == nullptr ? nullptr : work.parts + chunk * work.columns;
    for (int64_t column = 0; column < work.columns; column += kChunk) {
      part.count = smaller(kChunk, work.columns - column);
      if (work.bias != nullptr) biases_at(work, column, part.count, part.bias);
      for (int64_t i = 0; sums != nullptr && i < part.count; ++i) sums[column + i] = 0;
      for (int64_t row = chunk * work.chunk_rows; row < last; ++row) {
        const int64_t at = row * work.columns + column;
        read(x + at, part.count, part.x);
        if (work.saved != nullptr) read(saved + at, part.count, part.saved);
        compute(work, part);
        if (sums != nullptr) {
          for (int64_t i = 0; i < part.count; ++i) sums[column + i] += static_cast<double>(part.x[i]);
        }
        write(y + at, part.count, static_cast<const Real*>(part.x));
      }
    }
  }
}

}  // namespace

void planes(const BiasActWork& work, int64_t begin, int64_t end) {
  with_number(work.dtype, [&](auto zero) { pieces<decltype(zero)>(work, begin, end); });
}

void columns(const BiasActWork& work, int64_t begin, int64_t end) {
  with_number(work.dtype, [&](auto zero) { chunks<decltype(zero)>(work, begin, end); });
}

void sum_parts(const double* parts, int64_t lines, int64_t channels, int64_t each, void* result, int dtype) {
  with_number(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t line = 0; line < lines; ++line) {
        const double* of_channel = parts + (line * channels + c) * each;
        for (int64_t i = 0; i < each; ++i) sum += of_channel[i];
      }
      alignas(64) typename RealOf<T>::Type rounded[kLanes] = {static_cast<typename RealOf<T>::Type>(sum)};
      write(static_cast<T*>(result) + c, 1, static_cast<const typename RealOf<T>::Type*>(rounded));
    }
  });
}

}  // namespace precast::image::PRECAST_CPU_LEVEL
