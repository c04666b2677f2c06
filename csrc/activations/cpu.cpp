// Activations forward and backward, over buffers of floats in the first cache. Compiled once per CPU level.
//
// An activation is one function, which gives both value and slope. Some have parameters, and one changes the factor as
// well.
#include "cpu.h"

#include <math.h>

#include <type_traits>

#include "../cpu/row_simd.h"
#include "functions.h"

namespace precast::activations::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

// Limit for arguments of powers and exponentials. Beyond it the results are already 0 or 1.
constexpr float kFar = 20.0f;

struct Slope {
  Floats value;  // activation(x)
  Floats slope;  // its derivative
};

// What the activations have in common that leave the factor as it is. Their values are rounded before the product,
// those of SwigluOai are not.
struct Plain {
  template <class Rows>
  PRECAST_METHOD explicit Plain(const Rows&) {}
};

struct Silu : Plain {
  using Plain::Plain;
  PRECAST_METHOD Slope at(Floats x) const {
    const Share s = sigmoid(x);
    return {x * s.below, s.below * fma(bounded(x, kSharp), s.above, broadcast(1.0f))};
  }
};

struct Swish : Plain {
  template <class Rows>
  PRECAST_METHOD explicit Swish(const Rows& rows) : Plain(rows), alpha(rows.alpha) {}
  PRECAST_METHOD Slope at(Floats x) const {
    const Floats scaled = bounded(broadcast(alpha) * x, kSharp);
    const Share s = sigmoid(scaled);
    return {x * s.below, s.below * fma(scaled, s.above, broadcast(1.0f))};
  }
  float alpha;
};

struct FatRelu : Plain {
  // x <= alpha means x < the next number after alpha, which NaN is not.
  template <class Rows>
  PRECAST_METHOD explicit FatRelu(const Rows& rows) : Plain(rows), next(nextafterf(rows.alpha, INFINITY)) {}
  PRECAST_METHOD Slope at(Floats x) const {
    const Floats zero = broadcast(0.0f), end = broadcast(next);
    return {where_less(x, end, zero, x), where_less(x, end, zero, broadcast(1.0f))};
  }
  float next;
};

struct SwigluOai : Swish {
  template <class Rows>
  PRECAST_METHOD explicit SwigluOai(const Rows& rows) : Swish(rows), limit(rows.limit) {}
  PRECAST_METHOD Slope at(Floats x) const {
    const Floats top = broadcast(limit);
    const Slope here = Swish::at(where_less(top, x, top, x));
    return {here.value, where_less(top, x, broadcast(0.0f), here.slope)};
  }
  PRECAST_METHOD Slope factor_at(Floats f) const {
    const Floats one = broadcast(1.0f), zero = broadcast(0.0f);
    const Floats inside = where_less(broadcast(limit), magnitude(f), zero, one);
    return {plus(bounded(f, limit), one), inside};
  }
  float limit;
};

// The normal distribution function. With w = |x|, its tail above w is exp(-w^2 / 2) t Q(2 t - 1) for t = 3 / (w + 3). Q
// was fitted on w in [0, 16] by least squares of the relative error, which is 2e-8; evaluated in float it is 2e-7.
struct Gelu : Plain {
  using Plain::Plain;
  PRECAST_METHOD Slope at(Floats x) const {
    const Floats w = bounded(magnitude(x), kFar);
    const Floats high = leading_bits(w);  // its square is exact
    const Floats half = broadcast(-0.5f);
    const Floats e = exponential(high * high * half, (w - high) * (w + high) * half);
    const Floats t = broadcast(3.0f) / (w + broadcast(3.0f)), s = t + t - broadcast(1.0f);
    Floats q = broadcast(-1.9643519e-05f);
    q = fma(q, s, broadcast(-6.3884276e-05f));
    q = fma(q, s, broadcast(3.1595965e-04f));
    q = fma(q, s, broadcast(3.3568559e-04f));
    q = fma(q, s, broadcast(-2.3118649e-03f));
    q = fma(q, s, broadcast(-3.4866012e-03f));
    q = fma(q, s, broadcast(1.5752548e-02f));
    q = fma(q, s, broadcast(7.6672494e-02f));
    q = fma(q, s, broadcast(1.6977739e-01f));
    q = fma(q, s, broadcast(2.4302790e-01f));
    const Floats tail = e * t * q;
    const Floats below = where_negative(x, tail, fma(tail, broadcast(-1.0f), broadcast(1.0f)));
    return {x * below, fma(x * broadcast(0.39894228f), e, below)};
  }
};

// x / 2 (1 + tanh(u)) equals x times the sigmoid of 2 u.
struct GeluTanh : Plain {
  using Plain::Plain;
  PRECAST_METHOD Slope at(Floats x) const {
    const Floats c = bounded(x, kFar), square = c * c;
    const Floats twice = broadcast(1.5957691f);  // 2 sqrt(2 / pi)
    const Share s = sigmoid(c * twice * fma(square, broadcast(0.044715f), broadcast(1.0f)));
    const Floats inner = twice * fma(square, broadcast(0.134145f), broadcast(1.0f));
    return {x * s.below, fma(x * s.below * s.above, inner, s.below)};
  }
};

// The position of a piece.
struct Piece {
  int64_t row, column, count;
};

PRECAST_INLINE Piece piece_at(int64_t index, int64_t columns) {
  const int64_t pieces = (columns + kPiece - 1) / kPiece, row = index / pieces;
  const int64_t column = (index - row * pieces) * kPiece, rest = columns - column;
  return {row, column, rest < kPiece ? rest : kPiece};
}

// Up to thirty-two elements, `step` apart.
template <class T>
PRECAST_INLINE Block load_next(const T* from, int64_t step, int64_t count) {
  if (step == 1) return load_block_upto(from, count);
  T part[kBlock] = {};
  for (int64_t i = 0; i < count && i < kBlock; ++i) part[i] = from[i * step];
  return load_block(static_cast<const T*>(part));
}

template <class T>
PRECAST_INLINE void store_next(T* to, Block value, int64_t step, int64_t count) {
  if (step == 1) return store_block_upto(to, value, count);
  T part[kBlock];
  store_block(part, value);
  for (int64_t i = 0; i < count && i < kBlock; ++i) to[i * step] = part[i];
}

// Elements that are processed as floats at a time. Reading, the function and writing are loops of their own, from one
// buffer in the first cache to the next: then each function is compiled once, and not once for each dtype.
constexpr int64_t kChunk = 512;

// Up to kChunk elements, `step` apart, in the order of their blocks. Those beyond `count` in the last block are zero.
template <class T>
PRECAST_RARE void read(const T* from, int64_t step, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kBlock) store_block(to + i, load_next(from + i * step, step, count - i));
}

// The last block counts as a whole: its elements may be anywhere in it.
PRECAST_INLINE int64_t whole_blocks(int64_t count) { return (count + kBlock - 1) / kBlock * kBlock; }

template <class Function, class Rows>
PRECAST_RARE void values(const Rows& rows, int64_t count, float* x) {
  const Function function(rows);
  const int64_t end = whole_blocks(count);
  for (int64_t i = 0; i < end; i += kLanes) store(x + i, function.at(load(x + i)).value);
}

template <class Function, class Rows>
PRECAST_RARE void slopes(const Rows& rows, int64_t count, float* x, float* slope) {
  const Function function(rows);
  const int64_t end = whole_blocks(count);
  for (int64_t i = 0; i < end; i += kLanes) {
    const Slope here = function.at(load(x + i));
    store(x + i, here.value);
    store(slope + i, here.slope);
  }
}

// The factors of SwigluOai become what the activation is multiplied with. Their slopes are 0 where they are clamped.
template <class Rows>
PRECAST_RARE void factor_slopes(const Rows& rows, int64_t count, float* factor, float* slope) {
  const SwigluOai function(rows);
  const int64_t end = whole_blocks(count);
  for (int64_t i = 0; i < end; i += kLanes) {
    const Slope there = function.factor_at(load(factor + i));
    store(factor + i, there.value);
    store(slope + i, there.slope);
  }
}

// Calls body(function) with a null pointer to the function's type.
template <class Body>
PRECAST_INLINE void with_function(int activation, const Body& body) {
  if (activation == kSilu) {
    body(static_cast<Silu*>(nullptr));
  } else if (activation == kGelu) {
    body(static_cast<Gelu*>(nullptr));
  } else if (activation == kFatRelu) {
    body(static_cast<FatRelu*>(nullptr));
  } else if (activation == kSwigluOai) {
    body(static_cast<SwigluOai*>(nullptr));
  } else if (activation == kSwish) {
    body(static_cast<Swish*>(nullptr));
  } else {
    body(static_cast<GeluTanh*>(nullptr));
  }
}

PRECAST_RARE void values_of(const ForwardRows& rows, int64_t count, float* x) {
  with_function(rows.activation,
                [&](auto* function) { values<std::remove_pointer_t<decltype(function)>>(rows, count, x); });
}

PRECAST_RARE void slopes_of(const BackwardRows& rows, int64_t count, float* x, float* slope) {
  with_function(rows.activation,
                [&](auto* function) { slopes<std::remove_pointer_t<decltype(function)>>(rows, count, x, slope); });
}

template <class T>
void forward_chunk(const ForwardRows& rows, const T* gate, const T* factor, int64_t count, T* y) {
  alignas(64) float active[kChunk], factors[kChunk], unused[kChunk];
  read(gate, rows.step, count, active);
  values_of(rows, count, active);
  const bool clamps = rows.activation == kSwigluOai;
  if (factor != nullptr) read(factor, rows.step, count, factors);
  if (factor != nullptr && clamps) factor_slopes(rows, count, factors, unused);
  for (int64_t i = 0; i < count; i += kBlock) {
    Block result = load_block(static_cast<const float*>(active) + i);
    if (!clamps) result = round_to(result, gate);
    if (factor != nullptr) result = result * load_block(static_cast<const float*>(factors) + i);
    store_block_upto(y + i, result, count - i);
  }
}

template <class T>
void backward_chunk(const BackwardRows& rows, const T* gate, const T* factor, const T* grad, int64_t count,
                    T* grad_gate, T* grad_factor) {
  alignas(64) float value[kChunk], slope[kChunk], factors[kChunk], factor_slope[kChunk];
  const int64_t step = rows.step;
  read(gate, step, count, value);
  slopes_of(rows, count, value, slope);
  const bool clamps = rows.activation == kSwigluOai;
  if (factor != nullptr) read(factor, step, count, factors);
  if (factor != nullptr && clamps) factor_slopes(rows, count, factors, factor_slope);
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t rest = count - i;
    const Block g = load_block_upto(grad + i, rest), here = load_block(static_cast<const float*>(slope) + i);
    if (factor == nullptr) {
      store_next(grad_gate + i * step, g * here, step, rest);
      continue;
    }
    store_next(grad_gate + i * step, g * load_block(static_cast<const float*>(factors) + i) * here, step, rest);
    Block result = g * load_block(static_cast<const float*>(value) + i);
    if (clamps) result = result * load_block(static_cast<const float*>(factor_slope) + i);
    store_next(grad_factor + i * step, result, step, rest);
  }
}

template <class T>
void forward_pieces(const ForwardRows& rows, int64_t begin, int64_t end) {
  const int64_t step = rows.step;
  for (int64_t index = begin; index < end; ++index) {
    const Piece piece = piece_at(index, rows.columns);
    const T* gate = static_cast<const T*>(rows.gate) + piece.row * rows.gate_stride;
    const T* factor = static_cast<const T*>(rows.factor);
    if (factor != nullptr) factor += piece.row * rows.factor_stride;
    T* y = static_cast<T*>(rows.y) + piece.row * rows.columns;
    for (int64_t i = piece.column; i < piece.column + piece.count; i += kChunk) {
      const int64_t count = smaller(kChunk, piece.column + piece.count - i);
      forward_chunk(rows, gate + i * step, factor != nullptr ? factor + i * step : nullptr, count, y + i);
    }
  }
}

template <class T>
void backward_pieces(const BackwardRows& rows, int64_t begin, int64_t end) {
  const int64_t step = rows.step;
  for (int64_t index = begin; index < end; ++index) {
    const Piece piece = piece_at(index, rows.columns);
    const T* gate = static_cast<const T*>(rows.gate) + piece.row * rows.gate_stride;
    const T* grad = static_cast<const T*>(rows.grad) + piece.row * rows.grad_stride;
    const T* factor = static_cast<const T*>(rows.factor);
    T *grad_gate = static_cast<T*>(rows.grad_gate) + piece.row * rows.grad_x_stride,
      *grad_factor = static_cast<T*>(rows.grad_factor);
    if (factor != nullptr) {
      factor += piece.row * rows.factor_stride;
      grad_factor += piece.row * rows.grad_x_stride;
    }
    for (int64_t i = piece.column; i < piece.column + piece.count; i += kChunk) {
      const int64_t count = smaller(kChunk, piece.column + piece.count - i);
      const bool alone = factor == nullptr;
      backward_chunk(rows, gate + i * step, alone ? nullptr : factor + i * step, grad + i, count, grad_gate + i * step,
                     alone ? nullptr : grad_factor + i * step);
    }
  }
}

}  // namespace

void forward(const ForwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { forward_pieces<decltype(zero)>(rows, begin, end); });
}

void backward(const BackwardRows& rows, int64_t begin, int64_t end) {
  with_type(rows.dtype, [&](auto zero) { backward_pieces<decltype(zero)>(rows, begin, end); });
}

}  // namespace precast::activations::PRECAST_CPU_LEVEL
