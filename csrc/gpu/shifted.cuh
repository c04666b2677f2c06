// Rows that do not begin at a multiple of 16 bytes. They are moved by the aligned vectors of the result's row, whose
// first and last vectors may hold the row only in part. A thread's columns then differ from row to row, so per-column
// data is shifted into place.
#pragma once

#include "../gpu/device.cuh"

namespace precast {

// Loads the vector at a multiple of 16 bytes. If memory [begin, end) does not contain all of it, loads one element at a
// time, with zeros outside of the memory.
template <class T>
DEVICE Vector load_within(const char* p, const char* begin, const char* end) {
  if (p >= begin && p + 16 <= end) return load(p);
  Vector v;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float element[T::kPerWord];
#pragma unroll
    for (int e = 0; e < T::kPerWord; ++e) {
      const char* q = p + w * 4 + e * T::kBytes;
      element[e] = q >= begin && q < end ? T::load(q) : 0.0f;
    }
    v.word[w] = T::pack(element);
  }
  return v;
}

// Extracts sixteen bytes from two vectors, starting at byte `from` (0 to 15) of the first.
DEVICE Vector shifted(const Vector& a, const Vector& b, u32 from) {
  u32 word[8] = {a.word[0], a.word[1], a.word[2], a.word[3], b.word[0], b.word[1], b.word[2], b.word[3]};
#pragma unroll
  for (u32 step = 8; step >= 4; step /= 2) {
    const bool far = (from & step) != 0;
#pragma unroll
    for (u32 i = 0; i + step / 4 < 8; ++i) word[i] = far ? word[i + step / 4] : word[i];
  }
  const u32 bits = (from & 2) * 8;
  Vector v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v.word[i] = __funnelshift_r(word[i], word[i + 1], bits);
  }
  return v;
}

// The vectors of one row. Vector k holds the row's bytes from 16 k - lead on. A row has at least 16 bytes.
template <class T>
struct Shifted {
  u32 lead;   // bytes of the first vector before the row
  u32 count;  // vectors that contain part of the row
  u32 bytes;  // of the row

  DEVICE Shifted(const char* row, u32 row_bytes)
      : lead(static_cast<u32>(reinterpret_cast<u64>(row)) & 15),
        count((lead + row_bytes + 15) / 16),
        bytes(row_bytes) {}

  DEVICE bool whole(u32 k) const { return k * 16 >= lead && (k + 1) * 16 <= lead + bytes; }

  // True if element i of vector k is among the first `count` bytes of the row.
  DEVICE bool holds(u32 k, int i, u32 count) const { return k * 16 + i * T::kBytes - lead < count; }

  // The column of element i of vector k, which the row holds.
  DEVICE u32 column(u32 k, int i) const { return (k * 16 + i * T::kBytes - lead) / T::kBytes; }

  // The row's bytes in its last vector.
  DEVICE u32 tail() const { return lead + bytes - (count - 1) * 16; }

  // Vector k of a row with the same misalignment as this one. Elements outside of the row are arbitrary.
  DEVICE Vector load_from(const char* row, u32 k, const char* begin, const char* end) const {
    return load_within<T>(row - lead + k * 16, begin, end);
  }

  // The vector with zeros for all elements beyond the first `count` bytes of the row.
  DEVICE Vector cut(u32 k, const Vector& v, u32 count) const {
    if (k * 16 >= lead && (k + 1) * 16 <= lead + count) return v;
    return combine<T>(v, v, [&](int i, float p, float) { return holds(k, i, count) ? p : 0.0f; });
  }

  // Writes only the row's own bytes: partial vectors are written in pieces of two, four and eight bytes.
  DEVICE void store_to(char* row, u32 k, const Vector& v) const {
    char* p = row - lead + k * 16;
    if (whole(k)) return store(p, v);
    if (k == 0) {
      const u32 part = 16 - lead;
      if (T::kBytes == 2 && (part & 2) != 0) {
        const u32 word = part & 8 ? (part & 4 ? v.word[0] : v.word[1]) : part & 4 ? v.word[2] : v.word[3];
        *reinterpret_cast<u16*>(p + lead) = static_cast<u16>(word >> 16);
      }
      if ((part & 4) != 0) *reinterpret_cast<u32*>(p + 16 - (part & 12)) = part & 8 ? v.word[1] : v.word[3];
      if ((part & 8) != 0) store_half(p + 8, v.word[2], v.word[3]);
    } else {
      const u32 part = lead + bytes - k * 16;
      if ((part & 8) != 0) store_half(p, v.word[0], v.word[1]);
      if ((part & 4) != 0) *reinterpret_cast<u32*>(p + (part & 8)) = part & 8 ? v.word[2] : v.word[0];
      if (T::kBytes == 2 && (part & 2) != 0) {
        const u32 word = part & 8 ? (part & 4 ? v.word[3] : v.word[2]) : part & 4 ? v.word[1] : v.word[0];
        *reinterpret_cast<u16*>(p + (part & 12)) = static_cast<u16>(word);
      }
    }
  }

  static DEVICE void store_half(char* p, u32 low, u32 high) {
    *reinterpret_cast<u64*>(p) = static_cast<u64>(high) << 32 | low;
  }
};

// A weight or a bias, itself aligned to 16 bytes, shifted to match the row's columns.
struct ShiftedColumns {
  const char* from;
  u32 whole;    // vectors
  Vector rest;  // elements after the whole vectors

  template <class T>
  static DEVICE ShiftedColumns of(const char* from, u32 bytes) {
    ShiftedColumns columns = {from, bytes / 16, {{0, 0, 0, 0}}};
    const char* p = from + columns.whole * 16;
    u32 word[4];
#pragma unroll
    for (u32 w = 0; w < 4; ++w) {  // the same for all threads: one access per warp
      float element[T::kPerWord];
#pragma unroll
      for (u32 e = 0; e < T::kPerWord; ++e) {
        const u32 at = w * 4 + e * T::kBytes;
        element[e] = at < bytes % 16 ? T::load(p + at) : 0.0f;
      }
      word[w] = T::pack(element);
    }
    columns.rest = Vector{{word[0], word[1], word[2], word[3]}};
    return columns;
  }

  DEVICE Vector vector(u32 k) const { return k < whole ? load_constant(from + k * 16) : rest; }

  // The part that belongs to vector k of the row.
  DEVICE Vector at(u32 k, u32 lead) const {
    const Vector v = vector(k);
    return lead == 0 ? v : shifted(vector(k - 1), v, 16 - lead);
  }
};

}  // namespace precast
