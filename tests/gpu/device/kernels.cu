// What an extension of device code may use, one kernel each: templates, much shared memory, clusters, TMA.
struct alignas(64) TensorMap {
  char bytes[128];
};

template <class T, int N>
__global__ void scale(T* x, float factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * static_cast<T>(factor) * N;
}

// Reverses `n` numbers by way of shared memory, one block.
extern "C" __global__ void reverse(const float* x, float* y, int n) {
  extern __shared__ float buffer[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) buffer[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = buffer[n - 1 - i];
}

#if __CUDA_ARCH__ >= 900
// Each block writes its rank in the cluster and the size of that, after all of them have met.
extern "C" __global__ void ranks(int* out) {
  unsigned rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0) out[blockIdx.x] = rank * 100 + size;
}

// Copies the tile at (row, column) of a tensor by TMA; what reaches over its edge comes as zero.
extern "C" __global__ void tile(const __grid_constant__ TensorMap map, float* y, int row, int column) {
  __shared__ alignas(128) float box[16 * 32];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at),
                 "r"(static_cast<unsigned>(sizeof(box)))
                 : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(box))),
        "l"(&map), "r"(column), "r"(row), "r"(at)
        : "memory");
  }
  unsigned there = 0;
  while (there == 0) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(there)
        : "r"(at)
        : "memory");
  }
  for (int i = threadIdx.x; i < 16 * 32; i += blockDim.x) y[i] = box[i];
}
#endif
