// Keys and values of tokens into a paged cache on the GPU. See host.cpp for the launch.
//
// Nothing is computed, so a kernel knows bytes and no dtypes. A row of threads has a token, and each of them the same
// units of its key and of its value. What a slot would put outside of the caches is never written.
#include "cache.cuh"

namespace precast {
namespace kv_cache {

template <class Unit>
DEVICE void copy_token(const CopyArgs& a) {
  const u32 token = blockIdx.x * blockDim.y + threadIdx.y;
  u32 unit = threadIdx.x;
  if (token >= a.tokens || unit >= a.units) return;
  const i64 row = token;
  const i64 slot = a.slots.data[row * a.slots.stride];
  const char *keys = a.key.data + row * a.key.token, *values = a.value.data + row * a.value.token;
  u32 head = unit / a.head_units, within = unit - head * a.head_units;
  // The first units are on their way while the slot is.
  Unit key = read_unit<Unit>(keys + head * a.key.head + within * static_cast<i64>(sizeof(Unit)));
  Unit value = read_unit<Unit>(values + head * a.value.head + within * static_cast<i64>(sizeof(Unit)));
  const Place place = place_of(a.slots, slot);
  if (!place.inside) return;
  char *key_cache = at_place(a.key_cache, place), *value_cache = at_place(a.value_cache, place);
  for (;;) {
    const u32 piece = within / a.piece_units, of_piece = within - piece * a.piece_units;
    write_unit(key_cache + head * a.key_cache.head + piece * a.key_cache.piece + of_piece * sizeof(Unit), key);
    write_unit(value_cache + head * a.value_cache.head + within * static_cast<i64>(sizeof(Unit)), value);
    unit += blockDim.x;
    if (unit >= a.units) return;
    head = unit / a.head_units;
    within = unit - head * a.head_units;
    key = read_unit<Unit>(keys + head * a.key.head + within * static_cast<i64>(sizeof(Unit)));
    value = read_unit<Unit>(values + head * a.value.head + within * static_cast<i64>(sizeof(Unit)));
  }
}

DEVICE void copy_units(const CopyArgs& a) {
  if (a.unit_bytes == 16) return copy_token<Vector>(a);
  if (a.unit_bytes == 8) return copy_token<u64>(a);
  if (a.unit_bytes == 4) return copy_token<u32>(a);
  copy_token<u16>(a);
}

}  // namespace kv_cache
}  // namespace precast

KERNEL(reshape_and_cache, CopyArgs, 256, 1024, copy_units)
