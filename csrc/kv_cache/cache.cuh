// Shared by the kernels: the place of a token in a cache, and units of memory.
#pragma once

#include "../gpu/device.cuh"
#include "../gpu/division.h"
#include "args.h"

namespace precast {
namespace kv_cache {

// A token's place in a cache, if it has one.
struct Place {
  i64 block;
  i64 position;
  bool inside;
};

DEVICE Place place_of(const Slots& slots, i64 slot) {
  if (slot < 0 || slot >= slots.count) return {0, 0, false};
  const u64 number = static_cast<u64>(slot), size = static_cast<u64>(slots.block_size);
  const u64 block = divided(number, size);
  return {static_cast<i64>(block), static_cast<i64>(number - block * size), true};
}

DEVICE char* at_place(const Cache& cache, const Place& place) {
  return cache.data + place.block * cache.block + place.position * cache.position;
}

constexpr u32 kThreads = 128;  // per block of the kernels that rotate

// read_unit: memory that no thread of the launch writes. fetch_unit: memory that this thread will write.
template <class Unit>
DEVICE Unit read_unit(const char* p) {
  return *reinterpret_cast<const Unit*>(p);
}
template <>
DEVICE Vector read_unit<Vector>(const char* p) {
  return load_constant(p);
}

template <class Unit>
DEVICE Unit fetch_unit(const char* p) {
  return *reinterpret_cast<const Unit*>(p);
}
template <>
DEVICE Vector fetch_unit<Vector>(const char* p) {
  return load(p);
}

template <class Unit>
DEVICE void write_unit(char* p, Unit unit) {
  *reinterpret_cast<Unit*>(p) = unit;
}
template <>
DEVICE void write_unit<Vector>(char* p, Vector unit) {
  store(p, unit);
}

}  // namespace kv_cache
}  // namespace precast
