// Gated activations forward and backward, sixteen elements at a time. Compiled once per CPU level.
//
// The activations differ in one function, which gives both value and slope, so each is a branch in front of a loop over
// a piece of a row. The exponential is only computed for numbers that are not positive, so it never overflows, and the
// far tails keep their relative accuracy.
#include "cpu.h"

#include "../common/row_simd.h"
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

// 1 / (1 + exp(-x)), and one minus that, both to the last places. From -89 down the exponential is infinite; then both
// are zero, and so is what they are factors of.
struct Share {
  Floats below, above;
};

PRECAST_INLINE Share sigmoid(Floats x) {
  const Floats one = broadcast(1.0f), e = exponential(broadcast(0) - bounded(x, 89.0f));
  const Floats below = one / plus(e, one);
  return {below, lesser(e, broadcast(3e38f)) * below};
}

struct Silu {
  PRECAST_METHOD static Slope at(Floats x) {
    const Share s = sigmoid(x);
    return {x * s.below, s.below * fma(x, s.above, broadcast(1.0f))};
  }
};

// The normal distribution function. With w = |x|, its tail above w is exp(-w^2 / 2) t Q(2 t - 1) for t = 3 / (w + 3). Q
// was fitted on w in [0, 16] by least squares of the relative error, which is 2e-8; evaluated in float it is 2e-7.
struct Gelu {
  PRECAST_METHOD static Slope at(Floats x) {
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
struct GeluTanh {
  PRECAST_METHOD static Slope at(Floats x) {
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

template <class T, class Function>
void forward_piece(const ForwardRows& rows, Piece piece) {
  const int64_t x = piece.row * rows.x_stride + piece.column;
  const T *gate = static_cast<const T*>(rows.gate) + x, *factor = static_cast<const T*>(rows.factor) + x;
  T* y = static_cast<T*>(rows.y) + piece.row * rows.columns + piece.column;
  for (int64_t i = 0; i < piece.count; i += kBlock) {
    const int64_t rest = piece.count - i;
    const Block g = load_block_upto(gate + i, rest);
    const Block active = round_to(Block{Function::at(g.first).value, Function::at(g.second).value}, gate);
    store_block_upto(y + i, active * load_block_upto(factor + i, rest), rest);
  }
}

template <class T, class Function>
void backward_piece(const BackwardRows& rows, Piece piece) {
  const int64_t x = piece.row * rows.x_stride + piece.column, result = piece.row * rows.grad_x_stride + piece.column;
  const T *gate = static_cast<const T*>(rows.gate) + x, *factor = static_cast<const T*>(rows.factor) + x;
  const T* grad = static_cast<const T*>(rows.grad) + piece.row * rows.grad_stride + piece.column;
  T *grad_gate = static_cast<T*>(rows.grad_gate) + result, *grad_factor = static_cast<T*>(rows.grad_factor) + result;
  for (int64_t i = 0; i < piece.count; i += kBlock) {
    const int64_t rest = piece.count - i;
    const Block x = load_block_upto(gate + i, rest), g = load_block_upto(grad + i, rest);
    const Slope first = Function::at(x.first), second = Function::at(x.second);
    store_block_upto(grad_gate + i, g * load_block_upto(factor + i, rest) * Block{first.slope, second.slope}, rest);
    store_block_upto(grad_factor + i, g * Block{first.value, second.value}, rest);
  }
}

template <class T>
void forward_pieces(const ForwardRows& rows, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const Piece piece = piece_at(i, rows.columns);
    if (rows.activation == kSilu) {
      forward_piece<T, Silu>(rows, piece);
    } else if (rows.activation == kGelu) {
      forward_piece<T, Gelu>(rows, piece);
    } else {
      forward_piece<T, GeluTanh>(rows, piece);
    }
  }
}

template <class T>
void backward_pieces(const BackwardRows& rows, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const Piece piece = piece_at(i, rows.columns);
    if (rows.activation == kSilu) {
      backward_piece<T, Silu>(rows, piece);
    } else if (rows.activation == kGelu) {
      backward_piece<T, Gelu>(rows, piece);
    } else {
      backward_piece<T, GeluTanh>(rows, piece);
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
