// Rotary embedding on the GPU. Every pair of a head is rotated by its token's angle; the rest is copied. Arithmetic is
// in float32, rounded once. See host.cpp for which kernel serves which shape.
#include "entries.h"
#include "heads.cuh"
#include "norm_rotate.cuh"

namespace precast {
namespace rotary {

// Two parts of kBytes: the two sides of pairs, or whole pairs if they are neighbours. Up to kHeads heads share the
// cosines and sines.
template <class T, int kBytes, int kHeads>
DEVICE void rotary_parts(const RotaryArgs& a) {
  constexpr int kPairs = kBytes / T::kBytes;
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.total) return;
  const Place at = place_of<kHeads>(a, index);
  const i64 table = table_row(a.angles, at.token);
  const Parts parts = parts_of<T, kPairs>(a.angles, at.unit);
  const bool both = parts.second < a.head_bytes;
  // No branch: with one, the second load waited for the first, at 0.83 of the copy rate instead of 0.92.
  Part<kBytes> first[kHeads], second[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const char* const head = at.from + (h < at.count ? h * at.from_step : 0);
    load_part(head + parts.first, first[h]);
    load_part(head + (both ? parts.second : parts.first), second[h]);
  }
  if (parts.rotated) {
    const auto turn = load_turn_of_row<T, kPairs>(a.angles, table, at.unit);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) rotate<T>(first[h], second[h], turn, (a.angles.flags & kInterleaved) != 0);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= at.count) return;
    store(at.to + h * at.to_step + parts.first, first[h]);
    if (both) store(at.to + h * at.to_step + parts.second, second[h]);
  }
}

// One pair of any heads.
template <class T, int kHeads>
DEVICE void rotary_any(const RotaryArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.total) return;
  const Place at = place_of<kHeads>(a, index);
  const i64 table = table_row(a.angles, at.token);
  const Parts parts = parts_of<T, 1>(a.angles, at.unit);
  const bool both = parts.second < a.head_bytes;
  float first[kHeads], second[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const char* const head = at.from + (h < at.count ? h * at.from_step : 0);
    first[h] = T::load(head + parts.first);
    second[h] = T::load(head + (both ? parts.second : parts.first));
  }
  if (parts.rotated) {
    const Turn<1> turn = load_turn_of_row<T, 1>(a.angles, table, at.unit);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) rotate(first[h], second[h], turn.cos[0], turn.sin[0]);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= at.count) return;
    T::store(at.to + h * at.to_step + parts.first, first[h]);
    if (both) T::store(at.to + h * at.to_step + parts.second, second[h]);
  }
}

// Two vectors of a head, which is normalised first.
template <class T, bool kWords = false>
DEVICE void norm_rotary_vectors(const NormRotaryArgs& a) {
  constexpr int kPairs = T::kPerVector;
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  const bool inside = index < a.heads.total;  // all lanes of a warp add up squares
  const Place at = place_of<1>(a.heads, inside ? index : 0);
  const i64 table = table_row(a.heads.angles, at.token);
  const Parts parts = parts_of<T, kPairs>(a.heads.angles, at.unit);
  const bool here = inside && parts.first < a.heads.head_bytes, both = here && parts.second < a.heads.head_bytes;
  Vector first, second;
  load_part(at.from + (here ? parts.first : 0), first);
  load_part(at.from + (both ? parts.second : 0), second);
  norm_and_rotate<T, kWords, !kWords>(a.heads.angles, a.norm, at.is_query ? a.norm.query_weight : a.norm.key_weight,
                                      parts, here, both, a.heads.units.divisor, table, at.unit, first, second);
  if (here) store(at.to + parts.first, first);
  if (both) store(at.to + parts.second, second);
}

// Up to kHeads heads of any width, by a warp.
template <class T, int kHeads>
DEVICE void norm_rotary_any(const NormRotaryArgs& a) {
  const u32 index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= a.heads.total) return;  // whole warps
  const Place at = place_of<kHeads>(a.heads, index);
  const i64 table = table_row(a.heads.angles, at.token);
  const char* const weight = at.is_query ? a.norm.query_weight : a.norm.key_weight;
  float r[kHeads] = {};
  if (weight != nullptr) {
#pragma unroll 1
    for (u32 byte = at.unit * T::kBytes; byte < a.heads.head_bytes; byte += 32 * T::kBytes) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float x = T::load(at.from + (h < at.count ? h * at.from_step : 0) + byte);
        r[h] = fmaf(x, x, r[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) r[h] = inverse_rms(head_sum(r[h], 32), a.norm);
  }
#pragma unroll 1
  for (u32 unit = at.unit;; unit += 32) {
    const Parts parts = parts_of<T, 1>(a.heads.angles, unit);
    if (parts.first >= a.heads.head_bytes) return;
    const bool both = parts.second < a.heads.head_bytes;
    const PairTurn<T> turn(a.heads.angles, a.norm, weight, parts, both, table, unit);
    float x[kHeads], y[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const char* const head = at.from + (h < at.count ? h * at.from_step : 0);
      x[h] = T::load(head + parts.first);
      y[h] = both ? T::load(head + parts.second) : 0.0f;
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= at.count) break;
      turn.apply(r[h], x[h], y[h]);
      T::store(at.to + h * at.to_step + parts.first, x[h]);
      if (both) T::store(at.to + h * at.to_step + parts.second, y[h]);
    }
  }
}

ROTARY_KERNELS(KERNEL)

}  // namespace rotary
}  // namespace precast
