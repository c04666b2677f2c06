// Finds the tensor and the chunk that a block handles, and moves four elements of any dtype per thread.
#pragma once

#include "../gpu/device.cuh"
#include "args.h"

namespace precast {
namespace multi_tensor {

// Finds the block's tensor, the last one that begins at or before the block, and the block's chunk of it. A warp reads
// 32 entries at once. It starts where the block would be if all tensors had the same size, so one load is enough if
// they nearly do. Otherwise each load narrows the search by a factor of 32.
DEVICE void find(const u32* first, u32 count, u32& tensor, u32& chunk) {
  const u32 lane = threadIdx.x & 31u;
  const u32 middle = static_cast<u32>(static_cast<float>(blockIdx.x) * (static_cast<float>(count) / gridDim.x));
  const u32 from = middle > 16 ? middle - 16 : 0;
  const u32 near = __ballot_sync(0xffffffffu, from + lane < count && first[from + lane] <= blockIdx.x);
  if (near != 0 && (near != 0xffffffffu || from + 32 >= count)) {
    tensor = from + 31u - static_cast<u32>(__clz(static_cast<int>(near)));
    chunk = blockIdx.x - first[tensor];
    return;
  }
  u32 low = 0, left = count;
  while (left > 1) {
    const u32 width = (left + 31) / 32, place = lane * width;
    const bool before = place < left && first[low + place] <= blockIdx.x;
    const u32 last = 31u - static_cast<u32>(__clz(static_cast<int>(__ballot_sync(0xffffffffu, before))));
    left = left - last * width < width ? left - last * width : width;
    low += last * width;
  }
  tensor = low;
  chunk = blockIdx.x - first[low];
}

template <class Struct>
DEVICE Struct read(const Struct* from) {
  static_assert(sizeof(Struct) % 16 == 0, "");
  union Bits {
    Vector v[sizeof(Struct) / 16];
    Struct s;
    DEVICE Bits() {}
  } bits;
#pragma unroll
  for (u32 i = 0; i < sizeof(Struct) / 16; ++i) bits.v[i] = load_constant(reinterpret_cast<const char*>(from) + i * 16);
  return bits.s;
}

// The four elements of a thread: adjacent if everything is aligned and none is past the end, else 128 apart.
struct Place {
  i64 index;  // of the first element
  i64 n;
  bool together;
  DEVICE Place(const Row& row, u32 chunk) : n(row.n) {
    const i64 start = static_cast<i64>(chunk) * kChunk;
    together = row.aligned != 0 && start + kChunk <= n;
    index = start + (together ? threadIdx.x * 4 : threadIdx.x);
  }
  DEVICE i64 at(int k) const { return index + (together ? k : k * kThreads); }
  DEVICE bool has(int k) const { return together || at(k) < n; }
};

struct Quad {
  u32 word[4];
};

// Eight bytes: four elements of a narrow dtype.
DEVICE void load_pair(const char* p, u32& low, u32& high) {
  u32 word[2];
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(p));
  low = word[0], high = word[1];
}

DEVICE void store_pair(char* p, u32 low, u32 high) {
  const u32 word[2] = {low, high};
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(word[0]), "r"(word[1]) : "memory");
}

DEVICE u32 load_half(const char* p) { return *reinterpret_cast<const u16*>(p); }

// Dtypes are the numbers of precast::DType: float32, float16, bfloat16.
DEVICE Quad fetch(const char* p, u32 type, const Place& at) {
  Quad q = {{0, 0, 0, 0}};
  if (at.together) {
    if (type == 0) {
      const Vector v = load(p + at.index * 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) q.word[k] = v.word[k];
    } else {
      load_pair(p + at.index * 2, q.word[0], q.word[1]);
    }
    return q;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (at.has(k)) {
      q.word[k] = type == 0 ? *reinterpret_cast<const u32*>(p + at.at(k) * 4) : load_half(p + at.at(k) * 2);
    }
  }
  return q;
}

// Converts what was read to four floats in the same registers; narrow() converts back for keep(). One branch for all
// four.
DEVICE void widen(Quad& q, u32 type, const Place& at) {
  if (type == 0) return;
  if (at.together) {
    const u32 low = q.word[0], high = q.word[1];
    q = Quad{{low & 0xffffu, low >> 16, high & 0xffffu, high >> 16}};
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    q.word[k] = type == 1 ? __float_as_uint(Float16::widen(static_cast<u16>(q.word[k]))) : q.word[k] << 16;
  }
}

DEVICE void narrow(Quad& q, u32 type, const Place& at) {
  if (type == 0) return;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float v = __uint_as_float(q.word[k]);
    q.word[k] = type == 1 ? Float16::narrow(v) : BFloat16::narrow(v);
  }
  if (at.together) q = Quad{{q.word[0] | q.word[1] << 16, q.word[2] | q.word[3] << 16, 0, 0}};
}

DEVICE float get(const Quad& q, int k) { return __uint_as_float(q.word[k]); }
DEVICE void put(Quad& q, int k, float v) { q.word[k] = __float_as_uint(v); }

// Stores four floats.
DEVICE void keep(char* p, u32 type, const Place& at, Quad q) {
  narrow(q, type, at);
  if (at.together) {
    if (type == 0) {
      store(p + at.index * 4, Vector{{q.word[0], q.word[1], q.word[2], q.word[3]}});
    } else {
      store_pair(p + at.index * 2, q.word[0], q.word[1]);
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (!at.has(k)) continue;
    if (type == 0) {
      *reinterpret_cast<u32*>(p + at.at(k) * 4) = q.word[k];
    } else {
      *reinterpret_cast<u16*>(p + at.at(k) * 2) = static_cast<u16>(q.word[k]);
    }
  }
}

}  // namespace multi_tensor
}  // namespace precast
