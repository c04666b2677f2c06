// Division by a number that stays the same for a whole launch: index / divisor == index * multiplier >> shift, exactly,
// for an index below 2^31. Made on the host and used on the device, so it includes nothing.
#pragma once

namespace precast {

struct Division {
  unsigned divisor;
  unsigned multiplier;
  unsigned shift;
};

#if defined(DEVICE)  // of device.cuh
DEVICE u32 quotient(u32 index, const Division& by) {
  return static_cast<u32>(static_cast<u64>(index) * by.multiplier >> by.shift);
}
#else
inline Division division_by(long long divisor) {
  // Exact for indices below 2^31, as the multiplier is less than 1 + 2^-31 times too large.
  unsigned bits = 0;
  while ((1LL << bits) < divisor) ++bits;
  const unsigned long long power = 1ULL << (31 + bits), wide = static_cast<unsigned long long>(divisor);
  return {static_cast<unsigned>(wide), static_cast<unsigned>((power + wide - 1) / wide), 31 + bits};
}
#endif

}  // namespace precast
