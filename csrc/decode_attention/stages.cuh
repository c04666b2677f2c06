// Stages of keys and values in shared memory: the asynchronous copies that fill them, and the matrix instructions that
// read them.
#pragma once

#include "any.cuh"

namespace precast {
namespace decode_attention {

// The parameters for heads of up to kMost elements of kBytes bytes. The shared memory, kStages * kWarps * 32 *
// kRowBytes plus that of the queries, is in a table of host.cpp.
template <int kMost, int kBytes = 2>
struct Class {
  static constexpr int kWidth = kMost, kRowBytes = kMost * kBytes;
  static constexpr bool kNarrow = kBytes == 1;
  static constexpr int kWarps = kWidth == 256 ? 2 : 4;
  static constexpr int kStages = kRowBytes == 128 ? 4 : 2;
  static constexpr int kPerChunk = 16 / kBytes;        // elements in 16 bytes
  static constexpr bool kSharedQuery = kWidth == 256;  // there are too few registers for it
  static_assert(!(kNarrow && kSharedQuery), "shared queries are in the order of 16-bit keys");
};

#if PRECAST_ARCH >= 800

DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Copies 16 bytes from global to shared memory. If not `valid`, stores zeros and reads nothing.
DEVICE void copy_async(u32 to, const char* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

DEVICE void load_matrices(u32 (&m)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
DEVICE void load_transposed(u32 (&m)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// c += a b, 16 x 8 x 16.
template <class T>
DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <>
DEVICE void multiply<Float16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
DEVICE void multiply<BFloat16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

constexpr int kWarpKeys = 16;

// The keys that a warp takes at step `step` of a segment. With two warps, a tile takes two steps.
template <class Of>
DEVICE int key_at(const Segment& s, int step, int warp) {
  return s.first_tile * kTile + (step * Of::kWarps + warp) * kWarpKeys;
}

// The offset of a 16-byte chunk of a key or value in a stage. Each key or value is a row, whose chunks are permuted so
// that the same chunk of eight rows covers all banks.
template <class Of>
DEVICE u32 chunk_place(int row, int chunk) {
  return static_cast<u32>(row * Of::kRowBytes + ((chunk ^ (row & 7)) << 4));
}

// Starts the copies of the 16 keys from `key` on, and sets the bits of the keys that exist.
template <class Of>
DEVICE void begin_copies(const DecodeArgs& args, const Segment& s, int key, u32 stage, u32* present) {
  const Attention& a = args.call;
  const int lane = static_cast<int>(threadIdx.x) & 31, row = lane & 15, mine = key + row;
  const char *keys = a.keys, *values = a.values;
  bool valid = mine >= s.oldest && mine < s.length;
  if (valid) {
    int within;
    const i64 block = block_at(args, s.sequence, mine, &within);
    valid = block >= 0;
    if (valid) {
      keys += block * a.key_block + within * a.key_position + s.kv_head * a.key_head;
      values += block * a.value_block + within * a.value_position + s.kv_head * a.value_head;
    }
  }
  const u32 there = __ballot_sync(0xffffffffu, valid) & 0xffffu;
  if (lane == 0) *present = there;
  constexpr int kPerRow = Of::kRowBytes / 16, kRowsAtOnce = 32 / kPerRow;
  const int key_chunks = a.key_width / Of::kPerChunk, value_chunks = a.value_width / Of::kPerChunk;
  const u32 value_stage = stage + kWarpKeys * Of::kRowBytes;
  const int chunk = lane % kPerRow;
  const bool pieces = a.key_piece_width != a.key_width;
  if (pieces) {  // the same chunk of consecutive keys is adjacent in memory
    for (int c = lane >> 4; c < key_chunks; c += 2) {
      const u32 piece = quotient(static_cast<u32>(c), args.pieces);
      const int within = c - static_cast<int>(piece * args.pieces.divisor);
      copy_async(stage + chunk_place<Of>(row, c), valid ? keys + piece * a.key_piece + within * 16 : a.keys, valid);
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpKeys / kRowsAtOnce; ++i) {
    const int other = i * kRowsAtOnce + lane / kPerRow;
    const char* from = reinterpret_cast<const char*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(keys), other));
    const bool is_there = (there >> other & 1u) != 0;
    if (!pieces && chunk < key_chunks) {
      copy_async(stage + chunk_place<Of>(other, chunk), is_there ? from + chunk * 16 : a.keys, is_there);
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpKeys / kRowsAtOnce; ++i) {
    const int other = i * kRowsAtOnce + lane / kPerRow;
    const char* from = reinterpret_cast<const char*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(values), other));
    const bool is_there = (there >> other & 1u) != 0;
    if (chunk < value_chunks) {
      copy_async(value_stage + chunk_place<Of>(other, chunk), is_there ? from + chunk * 16 : a.values, is_there);
    }
  }
}

#endif

}  // namespace decode_attention
}  // namespace precast
