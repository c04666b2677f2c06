// The norm of a head and its rotation on the GPU, for the kernels of every family that has both. The norm is rounded to
// the dtype of the heads before the rotation, so the result is that of two launches.
#pragma once

#include "../gpu/columns.cuh"
#include "../norm/rms_norm_row.cuh"
#include "../rotary/head_norm.h"
#include "../rotary/rotate.cuh"

namespace precast {
namespace rotary {

// The sum over the lanes that share a head, a power of two. All lanes of the warp call it.
DEVICE float head_sum(float v, u32 lanes) {
#pragma unroll 1
  for (u32 distance = lanes >> 1; distance > 0; distance >>= 1) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

DEVICE float inverse_rms(float squares, const HeadNorm& norm) {
  return rsqrtf(squares * norm.inverse_width + norm.eps);
}

// The norm of one element, not yet rounded.
template <class T>
DEVICE float normalised(float x, float r, float weight, const HeadNorm& norm) {
  const float normal = x * r;
  return (norm.casting == rms_norm::kLlama ? T::round(normal) : normal) *
         (weight + rms_norm::weight_offset(norm.casting));
}

// The cosines and sines of the second elements of a unit's pairs, given those of the first elements. Exchanges the
// sines if the tables are whole and the rotation goes back.
template <class T, int kPairs>
DEVICE Turn<kPairs> turn_of_second(const Angles& a, i64 row, u32 unit, Turn<kPairs>& first) {
  if ((a.flags & kWholeTable) == 0) return first;
  Turn<kPairs> second = load_turn_of_row<T, kPairs>(a, row, unit + static_cast<u32>(a.half) / kPairs);
  if ((a.flags & kInverse) != 0) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float sin = first.sin[i];
      first.sin[i] = second.sin[i];
      second.sin[i] = sin;
    }
  }
  return second;
}

// Rotates one pair by the angles of its elements, in float32 or as torch's operators round in T.
template <class T>
DEVICE void rotate_pair(bool each_product, float& x, float& y, float cos_x, float sin_x, float cos_y, float sin_y) {
  float turned;
  if (each_product) {
    turned = __fsub_rn(T::round(__fmul_rn(x, cos_x)), T::round(__fmul_rn(y, sin_x)));
    y = __fadd_rn(T::round(__fmul_rn(y, cos_y)), T::round(__fmul_rn(x, sin_y)));
  } else {
    turned = fmaf(x, cos_x, -(y * sin_x));
    y = fmaf(y, cos_y, x * sin_y);
  }
  x = turned;
}

// ---- two elements of 16 bits at a time, for weights, and tables whose products are rounded, of the same dtype ----

// Sums and products of two words, each rounded once: the bits of torch, which computes them in float32 first.
template <class T>
DEVICE u32 added(u32 a, u32 b, float sign) {
  float x[2] = {sign, sign};
#if PRECAST_ARCH >= 800
  return T::fma(b, T::pack(x), a);
#else
  float y[2];
  T::unpack(a, x);
  T::unpack(b, y);
  for (int e = 0; e < 2; ++e) x[e] += sign * y[e];
  return T::pack(x);
#endif
}

template <class T>
DEVICE u32 product(u32 a, u32 b) {
#if PRECAST_ARCH >= 800
  return T::fma(a, b, 0x80008000u);  // minus zero
#else
  float x[2], y[2];
  T::unpack(a, x);
  T::unpack(b, y);
  for (int e = 0; e < 2; ++e) x[e] *= y[e];
  return T::pack(x);
#endif
}

template <class T>
DEVICE Vector normalised_words(const Vector& v, float r, const Vector& weight, const HeadNorm& norm) {
  Vector result;
  const auto scale = [&](bool rounds, float offset) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float x[2], w[2];
      T::unpack(v.word[k], x);
      T::unpack(weight.word[k], w);
#pragma unroll
      for (int e = 0; e < 2; ++e) x[e] = rounds ? x[e] * r : x[e] * r * (w[e] + offset);
      result.word[k] = rounds ? product<T>(T::pack(x), weight.word[k]) : T::pack(x);
    }
  };
  if (norm.casting == rms_norm::kLlama) {
    scale(true, 0.0f);
  } else {
    scale(false, rms_norm::weight_offset(norm.casting));
  }
  return result;
}

// The weights of a vector, as they are in memory. kMayBeWide: they may be float32 where T is narrower.
template <class T, bool kMayBeWide>
struct Weights {
  static constexpr bool kTwo = kMayBeWide && T::kBytes == 2;
  Vector v[kTwo ? 2 : 1];

  DEVICE void load(const char* from, u32 i, const HeadNorm& norm) {
    const bool wide = kTwo && norm.wide != 0;
    v[0] = load_constant(from + i * (wide ? 32 : 16));
    if constexpr (kTwo) {
      if (wide) v[1] = load_constant(from + i * 32 + 16);
    }
  }

  DEVICE Vector normalise(const Vector& x, float r, const HeadNorm& norm) const {
    if constexpr (T::kBytes == 2 && !kTwo) {
      return normalised_words<T>(x, r, v[0], norm);
    } else {
      if constexpr (kTwo) {
        if (norm.wide == 0) return normalised_words<T>(x, r, v[0], norm);
      }
      return combine<T>(x, x, [&](int i, float e, float) {
        return normalised<T>(e, r, __uint_as_float(v[i / 4].word[i & 3]), norm);
      });
    }
  }
};

// The numbers of a table for a unit; NaN for a position outside of the table.
template <class T>
DEVICE Vector load_words(const char* table, i64 stride, i64 row, u32 unit) {
  if (row >= 0) return load_constant(table + row * stride + unit * 16);
  const float nothing = __uint_as_float(0x7fc00000u), both[2] = {nothing, nothing};
  const u32 word = T::pack(both);
  return Vector{{word, word, word, word}};
}

// The four vectors of tables that rotate a unit.
struct WordTurn {
  Vector cos_x, sin_x, cos_y, sin_y;
};

template <class T>
DEVICE WordTurn load_word_turn(const Angles& a, i64 row, u32 unit) {
  const bool inverse = (a.flags & kInverse) != 0;
  const u32 other = (a.flags & kWholeTable) != 0 ? unit + static_cast<u32>(a.half) / T::kPerVector : unit;
  WordTurn turn;
  turn.cos_x = load_words<T>(a.cos, a.cos_stride, row, unit);
  turn.sin_x = load_words<T>(a.sin, a.sin_stride, row, inverse ? other : unit);
  turn.cos_y = load_words<T>(a.cos, a.cos_stride, row, other);
  turn.sin_y = load_words<T>(a.sin, a.sin_stride, row, inverse ? unit : other);
  return turn;
}

template <class T>
DEVICE void rotate_words(const WordTurn& turn, float sign, Vector& first, Vector& second) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const u32 x = first.word[k], y = second.word[k];
    first.word[k] = added<T>(product<T>(x, turn.cos_x.word[k]), product<T>(y, turn.sin_x.word[k]), -sign);
    second.word[k] = added<T>(product<T>(y, turn.cos_y.word[k]), product<T>(x, turn.sin_y.word[k]), sign);
  }
}

// ---- a unit ----

// Normalises, if the head has a weight, and rotates the two vectors of a unit. `lanes` threads share a head; all
// threads of the warp call it. `here`, `both`: there is a first vector, and a second. Everything is loaded before the
// sum; kLate: but the angles, which then need no registers meanwhile. kWords: the call is one that the functions above
// serve.
template <class T, bool kWords, bool kLate = false>
DEVICE void norm_and_rotate(const Angles& angles, const HeadNorm& norm, const char* weight, const Parts& parts,
                            bool here, bool both, u32 lanes, i64 row, u32 unit, Vector& first, Vector& second) {
  constexpr int kPairs = T::kPerVector;
  const bool turns = here && parts.rotated, scales = weight != nullptr;
  Turn<kPairs> turn, other;
  WordTurn words;
  Weights<T, !kWords> weights[2];
  if (scales && here) weights[0].load(weight, parts.first / 16, norm);
  if (scales && both) weights[1].load(weight, parts.second / 16, norm);
  const auto load_turns = [&] {
    if constexpr (kWords) {
      words = load_word_turn<T>(angles, row, unit);
    } else {
      turn = load_turn_of_row<T, kPairs>(angles, row, unit);
      other = turn_of_second<T, kPairs>(angles, row, unit, turn);
    }
  };
  if (turns && !kLate) load_turns();
  if (turns && kLate && row >= 0) {
    const i64 first_byte = static_cast<i64>(unit) * kPairs * ((angles.flags & kWideTable) != 0 ? 4 : T::kBytes);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(angles.cos + row * angles.cos_stride + first_byte));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(angles.sin + row * angles.sin_stride + first_byte));
  }
  if (norm.query_weight != nullptr) {
    float squares = here ? rms_norm::sum_of_squares<T>(first, 0.0f) : 0.0f;
    if (both) squares = rms_norm::sum_of_squares<T>(second, squares);
    const float r = inverse_rms(head_sum(squares, lanes), norm);
    if (scales && here) first = weights[0].normalise(first, r, norm);
    if (scales && both) second = weights[1].normalise(second, r, norm);
  }
  if (!turns) return;
  if (kLate) load_turns();
  if constexpr (kWords) {
    rotate_words<T>(words, (angles.flags & kInverse) != 0 ? -1.0f : 1.0f, first, second);
  } else {
    const auto rotate_all = [&](bool each_product) {
      for_pairs<T>(first, second, (angles.flags & kInterleaved) != 0, [&](int i, float& x, float& y) {
        rotate_pair<T>(each_product, x, y, turn.cos[i], turn.sin[i], other.cos[i], other.sin[i]);
      });
    };
    if ((angles.flags & kEachProduct) != 0) {
      rotate_all(true);
    } else {
      rotate_all(false);
    }
  }
}

// The reciprocal root of a head's mean square; a warp has the head.
template <class T>
DEVICE float inverse_rms_of(const char* head, u32 bytes, const HeadNorm& norm) {
  float squares = 0.0f;
  for (u32 byte = (threadIdx.x & 31) * T::kBytes; byte < bytes; byte += 32 * T::kBytes) {
    const float x = T::load(head + byte);
    squares = fmaf(x, x, squares);
  }
  return inverse_rms(head_sum(squares, 32), norm);
}

// The weights, cosines and sines of one pair, which the heads of a token share.
template <class T>
struct PairTurn {
  const Angles& angles;
  const HeadNorm& norm;
  bool scales, both, rotated;
  float weight_x = 0.0f, weight_y = 0.0f;
  Turn<1> first, second;

  DEVICE PairTurn(const Angles& of, const HeadNorm& by, const char* weight, const Parts& parts, bool two, i64 row,
                  u32 unit)
      : angles(of), norm(by), scales(weight != nullptr), both(two), rotated(parts.rotated) {
    if (scales) weight_x = column<T>(weight, parts.first / T::kBytes, norm.wide != 0);
    if (scales && both) weight_y = column<T>(weight, parts.second / T::kBytes, norm.wide != 0);
    if (!rotated) return;
    first = load_turn_of_row<T, 1>(angles, row, unit);
    second = turn_of_second<T, 1>(angles, row, unit, first);
  }

  // Normalises, if there is a weight, and rotates.
  DEVICE void apply(float r, float& x, float& y) const {
    if (scales) {
      x = T::round(normalised<T>(x, r, weight_x, norm));
      if (both) y = T::round(normalised<T>(y, r, weight_y, norm));
    }
    if (!rotated) return;
    rotate_pair<T>((angles.flags & kEachProduct) != 0, x, y, first.cos[0], first.sin[0], second.cos[0], second.sin[0]);
  }
};

}  // namespace rotary
}  // namespace precast
