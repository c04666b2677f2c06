// Shared by the gradients of the norms on the GPU: prefetched rows, and column sums in two launches. walk.h is the host
// side.
#pragma once

#include "../gpu/shifted.cuh"
#include "early.cuh"

namespace precast {

// The numbers of precast::DType.
enum : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// ---- prefetched rows ----
// A worker walks over the rows of two tensors. While it computes, the next rows are copied to shared memory. Every
// thread copies exactly what it will read, so no barrier is needed.

extern __shared__ Vector ring_memory[];

// `to` is an address in shared memory.
DEVICE void copy(u32 to, const char* p) {
#if PRECAST_ARCH >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(p) : "memory");
#else
  const Vector v = load(p);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
               "r"(v.word[3])
               : "memory");
#endif
}

// Copies the first `bytes` of sixteen, and zeros behind them.
DEVICE void copy_part(u32 to, const char* p, u32 bytes) {
#if PRECAST_ARCH >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(p), "r"(bytes) : "memory");
#else
  Vector v;
#pragma unroll
  for (u32 w = 0; w < 4; ++w) {
    const u16* half = reinterpret_cast<const u16*>(p) + 2 * w;
    const u32 low = w * 4 < bytes ? half[0] : 0, high = w * 4 + 2 < bytes ? half[1] : 0;
    v.word[w] = low | high << 16;
  }
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
               "r"(v.word[3])
               : "memory");
#endif
}

DEVICE Vector load_shared(u32 from) {
  Vector v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "r"(from)
               : "memory");
  return v;
}

// Ends a group of copies, which is one row. arrived<N>() waits for all rows but the last N.
DEVICE void row_ends() {
#if PRECAST_ARCH >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N>
DEVICE void arrived() {
#if PRECAST_ARCH >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// The walk of one thread: V vectors of each row, blockDim.x apart. Addresses are kept and advanced; recomputing them
// for each row took a quarter of all instructions. With kPair, the next row's copy starts before the wait for this row:
// two rows are in flight during the wait, and one during the computation. Otherwise `stages - 1` rows are always in
// flight. V = 1 is for rows so narrow that a warp may have several workers. They advance together, because all lanes
// take part in the sums. kShifted: rows begin anywhere, but all of a worker's rows at the same offset `lead` from a
// multiple of 16 bytes; `count` aligned vectors hold such a row, the last one with `tail` bytes of it.
template <int V, bool kPair = false, bool kShifted = false>
struct Walk {
  const char* first;  // this thread's share of the next row to copy
  const char* second;
  i64 first_step, second_step;  // between consecutive rows of the worker
  u32 left;                     // rows left for the worker of the warp with the most rows
  u32 fewer;                    // how many fewer rows this worker has, if a warp has several: zero or one
  u32 ahead;                    // rows in flight
  u32 row_bytes, ring_bytes, start, to, from, held;
  u32 last, tail;  // kShifted: this thread's vector that is the last one, if it has it, and that one's bytes
  bool taken[V];   // which of the vectors exist

  template <class Args>
  DEVICE Walk(const Args& a, u32 worker) : Walk(a, worker, 0, a.vectors, 16) {}

  template <class Args>
  DEVICE Walk(const Args& a, u32 worker, u32 lead, u32 count, u32 tail_bytes)
      : first_step(a.x_stride * a.workers),
        second_step(a.grad_stride * a.workers),
        left(static_cast<u32>((a.rows - worker + a.workers - 1) / a.workers)),
        fewer(0),
        ahead(a.stages - 1),
        row_bytes(a.vectors * 16),
        last(count - 1 - threadIdx.x),
        tail(tail_bytes) {
    first = a.x + worker * a.x_stride + threadIdx.x * 16 - lead;
    second = a.grad + worker * a.grad_stride + threadIdx.x * 16 - lead;
    ring_bytes = a.stages * 2 * row_bytes;
    start = static_cast<u32>(__cvta_generic_to_shared(ring_memory)) + threadIdx.y * ring_bytes + threadIdx.x * 16;
    to = from = held = start;
#pragma unroll
    for (int j = 0; j < V; ++j) taken[j] = threadIdx.x + j * blockDim.x < count;
    if constexpr (V == 1) {
      fewer = __shfl_sync(0xffffffffu, left, 0) - left;
      left += fewer;
    }
#pragma unroll 1
    for (u32 i = 0; i < ahead; ++i) fetch(i + fewer < left);
  }

  DEVICE u32 beyond(u32 slot) const {
    slot += 2 * row_bytes;
    return slot == start + ring_bytes ? start : slot;
  }

  DEVICE void fetch(bool exists) {
    const u32 step = blockDim.x * 16;
    if (exists) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!taken[j]) continue;
        if constexpr (kShifted) {
          const u32 bytes = j * blockDim.x == last ? tail : 16;
          copy_part(to + j * step, first + j * step, bytes);
          copy_part(to + row_bytes + j * step, second + j * step, bytes);
        } else {
          copy(to + j * step, first + j * step);
          copy(to + row_bytes + j * step, second + j * step);
        }
      }
      first += first_step;
      second += second_step;
    }
    to = beyond(to);
    row_ends();
  }

  DEVICE void wait() const {
    if (kPair || ahead == 2) {
      arrived<1>();
    } else {
      arrived<0>();
    }
  }

  DEVICE void go_on() {
    from = beyond(from);
    if constexpr (!kPair) fetch(left > ahead + fewer);
    --left;
  }

  // Loads the next row into registers.
  DEVICE void take(Vector (&x)[V], Vector (&grad)[V]) {
    if constexpr (V == 1) taken[0] = taken[0] && left > fewer;
    if constexpr (kPair) fetch(left > 1);
    wait();
    const u32 step = blockDim.x * 16;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!taken[j]) continue;
      x[j] = load_shared(from + j * step);
      grad[j] = load_shared(from + row_bytes + j * step);
    }
    go_on();
  }

  // The same if registers cannot hold the row: it stays in shared memory until the next call.
  DEVICE void hold() {
    static_assert(!kPair, "the row under way would overwrite it");
    wait();
    held = from;
    go_on();
  }
  DEVICE void take_held(int j, Vector& x, Vector& grad) const {
    x = load_shared(held + j * blockDim.x * 16);
    grad = load_shared(held + row_bytes + j * blockDim.x * 16);
  }
};

// Address of this thread's share of the weight row, which follows the ring if registers cannot hold it.
template <class Args>
DEVICE u32 behind_ring(const Args& a) {
  return static_cast<u32>(__cvta_generic_to_shared(ring_memory)) + a.stages * 2 * a.vectors * 16 + threadIdx.x * 16;
}

// Stores a thread's sums into a line of sums, in any memory.
template <class T, int V>
DEVICE void store_sums(float4* line, const float (&part)[V][T::kPerVector], u32 vectors) {
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 i = threadIdx.x + j * blockDim.x;
    if (i >= vectors) continue;
#pragma unroll
    for (int e = 0; e < T::kPerVector; e += 4) {
      line[(i * T::kPerVector + e) / 4] = float4{part[j][e], part[j][e + 1], part[j][e + 2], part[j][e + 3]};
    }
  }
}

// The same for rows that begin anywhere: this thread's sums belong to the columns of its vectors of such a row.
template <class T, int V>
DEVICE void store_shifted_sums(float* line, const float (&part)[V][T::kPerVector], const Shifted<T>& at) {
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = threadIdx.x + j * blockDim.x;
#pragma unroll
    for (int e = 0; e < T::kPerVector; ++e) {
      if (at.holds(k, e, at.bytes)) line[at.column(k, e)] = part[j][e];
    }
  }
}

template <class T, int V>
DEVICE void store_shifted_parts(float* line, const float (&part)[V][T::kPerVector], const Shifted<T>& at) {
  if (blockDim.y == 1) {
    store_shifted_sums<T>(line, part, at);
    return;
  }
  const u32 columns = at.bytes / T::kBytes;
  float* const workers = reinterpret_cast<float*>(ring_memory);
  __syncthreads();
  store_shifted_sums<T>(workers + threadIdx.y * columns, part, at);
  __syncthreads();
  for (u32 i = threadIdx.y * blockDim.x + threadIdx.x; i < columns; i += blockDim.x * blockDim.y) {
    float sum = workers[i];
#pragma unroll 4
    for (u32 worker = 1; worker < blockDim.y; ++worker) sum += workers[worker * columns + i];
    line[i] = sum;
  }
}

// Reduces per-worker partial sums across the block, in the order of the workers, into the block's line of the parts.
// All threads call it when they no longer need the rows in shared memory, because the sums overwrite them.
template <class T, int V>
DEVICE void store_parts(float* parts, const float (&part)[V][T::kPerVector], u32 vectors) {
  float4* const line = reinterpret_cast<float4*>(parts);
  if (blockDim.y == 1) {
    store_sums<T>(line, part, vectors);
    return;
  }
  const u32 quads = vectors * (T::kPerVector / 4);
  float4* const workers = reinterpret_cast<float4*>(ring_memory);
  __syncthreads();
  store_sums<T>(workers + threadIdx.y * quads, part, vectors);
  __syncthreads();
  for (u32 i = threadIdx.y * blockDim.x + threadIdx.x; i < quads; i += blockDim.x * blockDim.y) {
    float4 sum = workers[i];
#pragma unroll 4
    for (u32 worker = 1; worker < blockDim.y; ++worker) {
      const float4 share = workers[worker * quads + i];
      sum.x += share.x;
      sum.y += share.y;
      sum.z += share.z;
      sum.w += share.w;
    }
    line[i] = sum;
  }
}

// result[c] = round(sum of parts[i][c] over the lines i). For blocks of up to 1024 threads: blockDim.x threads share a
// line, with four columns each, and blockDim.y threads share a column. The order of the sums is fixed.
DEVICE void add_columns(const float* parts, i64 columns, u32 lines, char* result, int dtype) {
  __shared__ float shared[32 * 129];  // one column after another: blockDim.y sums and a gap each
  launch_before_has_ended();
  const u32 line = blockDim.y + 1;
  const i64 begin = static_cast<i64>(blockIdx.x) * blockDim.x * 4, column = begin + threadIdx.x * 4;
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (columns % 4 == 0 && column < columns) {
    // Reads four lines at once, including the remainder.
    const auto add_four = [&](u32 first, bool all) {
      float4 four[4];
#pragma unroll
      for (u32 k = 0; k < 4; ++k) {
        const u32 i = first + k * blockDim.y;
        four[k] =
            all || i < lines ? *reinterpret_cast<const float4*>(parts + i * columns + column) : float4{0, 0, 0, 0};
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sum[0] += four[k].x;
        sum[1] += four[k].y;
        sum[2] += four[k].z;
        sum[3] += four[k].w;
      }
    };
    u32 i = threadIdx.y;
    for (; i + 3 * blockDim.y < lines; i += 4 * blockDim.y) add_four(i, true);
    if (i < lines) add_four(i, false);
  } else {
    for (u32 i = threadIdx.y; i < lines; i += blockDim.y) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[e] += column + e < columns ? parts[i * columns + column + e] : 0.0f;
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) shared[(threadIdx.x * 4 + e) * line + threadIdx.y] = sum[e];
  __syncthreads();
  // Eight threads for each column, then one.
  const u32 thread = threadIdx.y * blockDim.x + threadIdx.x, width = blockDim.x * 4, mine = thread % width;
  float* of_column = shared + mine * line;
  float total = 0.0f;
  if (thread < width * 8) {
    for (u32 i = thread / width; i < blockDim.y; i += 8) total += of_column[i];
    of_column[thread / width] = total;
  }
  __syncthreads();
  if (thread >= width || begin + mine >= columns) return;
  for (u32 i = 1; i < 8; ++i) total += of_column[i];
  if (dtype == kFloat32) Float32::store(result + (begin + mine) * 4, total);
  if (dtype == kFloat16) Float16::store(result + (begin + mine) * 2, total);
  if (dtype == kBFloat16) BFloat16::store(result + (begin + mine) * 2, total);
}

}  // namespace precast
