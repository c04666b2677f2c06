// Division by a constant of the launch: index / divisor == (index * multiplier) >> shift, exactly, for indices below
// 2^31. The host creates it and the device uses it, so this file includes nothing.
#pragma once

namespace precast {

struct Division {
  unsigned divisor;
  unsigned multiplier;
  unsigned shift;
};

#if defined(DEVICE)  // defined by device.cuh
DEVICE u32 quotient(u32 index, const Division& by) {
  return static_cast<u32>(static_cast<u64>(index) * by.multiplier >> by.shift);
}
#else
inline Division division_by(long long divisor) {
  // Exact for indices below 2^31, because the multiplier is too large by a factor of less than 1 + 2^-31.
  unsigned bits = 0;
  while ((1LL << bits) < divisor) ++bits;
  const unsigned long long power = 1ULL << (31 + bits), wide = static_cast<unsigned long long>(divisor);
  return {static_cast<unsigned>(wide), static_cast<unsigned>((power + wide - 1) / wide), 31 + bits};
}
#endif

}  // namespace precast
