// Stages of keys and values in shared memory, and the asynchronous copies that fill them.
#pragma once

#include "../gpu/matrix.cuh"
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
