// The blocks of a cluster: their barrier, and reads of each other's shared memory. Before sm_90 a cluster is one block.
#pragma once

#include "../gpu/device.cuh"

namespace precast {

DEVICE void wait_for_cluster() {
#if PRECAST_ARCH >= 900
  asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

#if PRECAST_ARCH >= 900
// Where block `rank` of the cluster has what this one has at `p`.
DEVICE u32 address_in(const void* p, int rank) {
  u32 there;
  const u32 here = static_cast<u32>(__cvta_generic_to_shared(p));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  return there;
}
#endif

// Reads four floats, or an integer, from the shared memory of block `rank`.
DEVICE float4 read_from(const float* p, int rank) {
#if PRECAST_ARCH >= 900
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address_in(p, rank))
               : "memory");
  return v;
#else
  return *reinterpret_cast<const float4*>(p);
#endif
}
DEVICE int read_from(const int* p, int rank) {
#if PRECAST_ARCH >= 900
  int v;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(address_in(p, rank)) : "memory");
  return v;
#else
  return *p;
#endif
}

}  // namespace precast
