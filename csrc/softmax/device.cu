// Softmax of scaled rows on the GPU, plain, masked and causal. See host.cpp for which kernel serves which shape.
//
//   z = scale x, or the masked value    y = exp(z - max z) / sum exp(z - max z)
//
// All arithmetic is in float32. The maximum ignores NaN but the sum does not, so an unmasked NaN makes its row NaN, as
// an infinity does. Columns beyond the diagonal are neither read nor counted, and their result is zero.
#include "entries.h"
#include "wide.cuh"

namespace precast {
namespace softmax {

// The mask's bytes of one vector.
template <class T>
struct MaskBytes {
  static constexpr int kWords = T::kPerVector / 4;
  u32 word[kWords];

  DEVICE void load(const char* p) {
    if constexpr (kWords == 2) {
      asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(p));
    } else {
      asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(word[0]) : "l"(p));
    }
  }
  DEVICE bool masked(int i) const { return (word[i / 4] & (0xffu << (i % 4 * 8))) != 0; }
  // Not zero if any of the bytes is zero.
  DEVICE u32 open() const {
    u32 found = 0;
#pragma unroll
    for (int k = 0; k < kWords; ++k) found |= (word[k] - 0x01010101u) & ~word[k] & 0x80808080u;
    return found;
  }
};

DEVICE const char* mask_row(const ForwardArgs& a, u32 row) {
  const u64 number = static_cast<u64>(a.first_row) + row, queries = static_cast<u64>(a.queries);
  const u64 head_number = divided(number, queries), query = number - head_number * queries;
  const u64 batch = divided(head_number, static_cast<u64>(a.heads));
  const u64 head = head_number - batch * static_cast<u64>(a.heads);
  return a.mask + static_cast<i64>(batch) * a.mask_batch + static_cast<i64>(head) * a.mask_head +
         static_cast<i64>(query) * a.mask_query;
}

// True if all columns of a row are masked. Called only for rows whose maximum is the masked value, by all threads of
// the row or by none.
DEVICE bool fully_masked(const char* mask, i64 columns, float* shared) {
  float open = 0.0f;
#pragma unroll 1
  for (i64 i = threadIdx.x; i < columns; i += blockDim.x) {
    if (mask[i] == 0) open = 1.0f;
  }
  return row_max(open, shared) == 0.0f;
}

// The row to process when heads that share a mask take turns with a tile of queries each. The mask's rows are then
// still in the cache when the next head reads them. Only for launches of whole batches with whole tiles.
DEVICE u32 row_of_turn(const ForwardArgs& a, u32 turn) {
  const u32 queries = static_cast<u32>(a.queries), heads = static_cast<u32>(a.heads);
  const u32 of_tile = heads * a.tile, tile = turn / of_tile, in_tile = turn - tile * of_tile;
  const u32 head = in_tile / a.tile, tiles = queries / a.tile, batch = tile / tiles;
  return (batch * heads + head) * queries + (tile - batch * tiles) * a.tile + (in_tile - head * a.tile);
}

DEVICE float uniform_share(const ForwardArgs& a) {
  return a.uniform != 0 ? 1.0f / static_cast<float>(a.columns) : 0.0f;
}

// A row in the registers of one block, or of one warp for short rows. Each thread has V vectors, blockDim.x apart.
template <class T, int V, bool causal>
DEVICE void forward_row(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[3][32];
  begin_launch(a.early);
  constexpr int kPer = T::kPerVector;
  u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // only if blockDim.y > 1, and then there is no barrier
  if (!causal && a.tile != 0) row = row_of_turn(a, row);
  const u32 first = threadIdx.x, step = blockDim.x;
  const u32 open = static_cast<u32>(causal ? open_columns(a, row) : a.columns);
  const u32 vectors = causal ? (open + kPer - 1) / kPer : a.vectors;

  const char* x = a.x + row * a.x_stride;
  Vector v[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step < vectors) v[j] = load(x + (first + j * step) * 16);
  }
  MaskBytes<T> bytes[V];
  if (!causal && first == 0 && a.prefetch != 0 && row + a.prefetch < a.rows) {
    prefetch(x + a.prefetch * a.x_stride, vectors * 16);
  }
  const bool has_mask = !causal && a.mask != nullptr;
  if (has_mask) {
    const char* mask = mask_row(a, row);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (first + j * step < vectors) bytes[j].load(mask + (first + j * step) * kPer);
    }
  }
  // All threads of the row together skip what lies past the row's last vector: in a causal row, half on average.
  const auto taken = [&](int j) { return j * step < vectors; };
  const auto cut = [&](int j) { return (j + 1) * step > (causal ? open / kPer : vectors); };  // not all are in the row
  float z[V][kPer], largest = -infinity();
  u32 open_bytes = 0;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (!taken(j)) continue;
    for_elements<T>(v[j], [&](int i, float e) { z[j][i] = e * a.scale; });
    if (has_mask) {
      if (first + j * step < vectors) open_bytes |= bytes[j].open();
#pragma unroll
      for (int i = 0; i < kPer; ++i) z[j][i] = bytes[j].masked(i) ? a.masked_value : z[j][i];
    }
    if (cut(j)) {
      const int left = static_cast<int>(open - (first + j * step) * kPer);
#pragma unroll
      for (int i = 0; i < kPer; ++i) z[j][i] = i < left ? z[j][i] : -infinity();
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) largest = fmaxf(largest, z[j][i]);
  }
  largest = row_max<!causal>(largest, shared[0]);

  // Checked only for a row whose maximum is the masked value, by all of its threads or by none.
  const bool asked = has_mask && largest == a.masked_value;
  const bool full = taken_together(asked) && row_max(open_bytes != 0 ? 1.0f : 0.0f, shared[1]) == 0.0f && asked;
  if (full && largest == -infinity()) largest = 0.0f;  // avoids a NaN: the result is multiplied by zero
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (!taken(j)) continue;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      z[j][i] = exponential(z[j][i] - largest);
      sum += z[j][i];
    }
  }
  sum = row_sum<!causal>(sum, shared[2]);
  const float share = full ? 0.0f : 1.0f / sum, constant = full ? uniform_share(a) : 0.0f;

  char* y = a.y + row * a.y_stride;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 at = first + j * step;
    Vector result = {{0, 0, 0, 0}};
    if (taken(j)) {
      result = combine<T>(result, result, [&](int i, float, float) { return fmaf(z[j][i], share, constant); });
      if (cut(j)) {  // zero whatever the row holds: a NaN of the row must not appear beyond the diagonal
        const int left = static_cast<int>(open - at * kPer);
        result = combine<T>(result, result, [&](int i, float e, float) { return i < left ? e : 0.0f; });
      }
    }
    if (at >= a.vectors) continue;
    if (has_mask && a.tile == 0) {  // keeps the mask in the cache for the next head
      store_streaming(y + at * 16, result);
    } else {
      store(y + at * 16, result);
    }
  }
}

// The same for rows that do not begin at multiples of 16 bytes. The mask is read one byte at a time.
template <class T, int V>
DEVICE void forward_shifted(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[3][32];
  begin_launch(a.early);
  constexpr int kPer = T::kPerVector;
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const u32 first = threadIdx.x, step = blockDim.x, bytes = static_cast<u32>(a.columns) * T::kBytes;
  const u32 open = static_cast<u32>(open_columns(a, row)) * T::kBytes;
  char* y = a.y + row * a.y_stride;
  const Shifted<T> at(y, bytes);

  const char* end = a.x + static_cast<i64>(a.rows - 1) * a.x_stride + bytes;
  Vector v[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    if (k * 16 < at.lead + open) v[j] = at.load_from(a.x + row * a.x_stride, k, a.x, end);
  }
  const char* mask = a.mask != nullptr ? mask_row(a, row) : nullptr;
  float z[V][kPer], largest = -infinity();
  bool found = false;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    for_elements<T>(v[j], [&](int i, float e) { z[j][i] = e * a.scale; });
    if (mask != nullptr) {
      const char* m = mask + (static_cast<i64>(k) * 16 - at.lead) / T::kBytes;
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        if (!at.holds(k, i, open)) continue;
        const bool masked = m[i] != 0;
        z[j][i] = masked ? a.masked_value : z[j][i];
        found |= !masked;
      }
    }
    if (!at.whole(k) || (k + 1) * 16 > at.lead + open) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) z[j][i] = at.holds(k, i, open) ? z[j][i] : -infinity();
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) largest = fmaxf(largest, z[j][i]);
  }
  largest = row_max(largest, shared[0]);

  const bool asked = mask != nullptr && largest == a.masked_value;
  const bool full = taken_together(asked) && row_max(found ? 1.0f : 0.0f, shared[1]) == 0.0f && asked;
  if (full && largest == -infinity()) largest = 0.0f;  // avoids a NaN: the result is multiplied by zero
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (first + j * step >= at.count) continue;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      z[j][i] = exponential(z[j][i] - largest);
      sum += z[j][i];
    }
  }
  sum = row_sum(sum, shared[2]);
  const float share = full ? 0.0f : 1.0f / sum, constant = full ? uniform_share(a) : 0.0f;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const u32 k = first + j * step;
    if (k >= at.count) continue;
    const bool whole = (k + 1) * 16 <= at.lead + open;
    at.store_to(y, k, combine<T>(v[j], v[j], [&](int i, float, float) {
                  return whole || at.holds(k, i, open) ? fmaf(z[j][i], share, constant) : 0.0f;
                }));
  }
}

// Any row. It is read once for maximum and sum together, and again for the result. Elements that can be moved by 16
// bytes come first (a.vectors, which may be 0), then the rest one at a time.
template <class T>
DEVICE void forward_any(const ForwardArgs& a) {
  alignas(16) __shared__ float shared[3][32];
  begin_launch(a.early);
  constexpr int kPer = T::kPerVector, kSteps = 4;
  const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const i64 first = threadIdx.x, step = blockDim.x, open = open_columns(a, row);
  const char* x = a.x + row * a.x_stride;
  const Peeled<T> of(a, x, open);
  const char* mask = a.mask != nullptr ? mask_row(a, row) : nullptr;
  const auto logit = [&](i64 i) {
    if (mask != nullptr && mask[i] != 0) return a.masked_value;
    return T::load(x + i * T::kBytes) * a.scale;
  };
  const auto logits = [&](i64 i, float (&z)[kPer]) {
    for_elements<T>(load(x + of.byte(i)), [&](int k, float e) { z[k] = e * a.scale; });
    if (mask == nullptr) return;
    MaskBytes<T> bytes;
    bytes.load(mask + i * kPer);
#pragma unroll
    for (int k = 0; k < kPer; ++k) z[k] = bytes.masked(k) ? a.masked_value : z[k];
  };

  Running running = {-infinity(), 0.0f};
#pragma unroll 1
  for (i64 i = first; i < of.vectors; i += step) {
    float z[kPer];
    logits(i, z);
    running.add(z);
  }
#pragma unroll 1
  for (i64 i = first; i < of.others; i += kSteps * step) {
    float z[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) z[k] = i + k * step < of.others ? logit(of.column(i + k * step)) : -infinity();
    running.add(z);
  }
  const float largest = row_max(running.largest, shared[0]);
  const bool full = mask != nullptr && largest == a.masked_value && fully_masked(mask, a.columns, shared[1]);
  const float sum = row_sum(running.sum * exponential(running.largest - largest), shared[2]);
  const float share = 1.0f / sum, constant = uniform_share(a);

  char* y = a.y + row * a.y_stride;
#pragma unroll 1
  for (i64 i = first; i < of.vectors; i += step) {
    float z[kPer];
    logits(i, z);
    const Vector none = {{0, 0, 0, 0}};
    store(y + of.byte(i), combine<T>(none, none, [&](int k, float, float) {
            return full ? constant : exponential(z[k] - largest) * share;
          }));
  }
#pragma unroll 2
  for (i64 i = first; i < of.others; i += step) {
    const i64 at = of.column(i);
    T::store(y + at * T::kBytes, full ? constant : exponential(logit(at) - largest) * share);
  }
  zero_from<T>(y, open, a.columns, a.vectors);
}

// Registers: 48 and 80 as measured on the H200; compilers for older GPUs need more to keep everything in registers.
#if PRECAST_ARCH >= 900
#define V4_THREADS 640
#define V4_RESIDENT 1280
#define V8_THREADS 768
#else
#define V4_THREADS 512
#define V4_RESIDENT 1024
#define V8_THREADS 512
#endif
#if PRECAST_ARCH / 100 == 9
#define SHIFTED_RESIDENT 1024
#else
#define SHIFTED_RESIDENT 512
#endif

SOFTMAX_KERNELS(KERNEL)

}  // namespace softmax
}  // namespace precast
