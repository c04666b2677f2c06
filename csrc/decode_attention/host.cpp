// Attention over a paged cache: checks, the CPU implementation, and the choice of a kernel.
#include "../cpu/cpu_level.h"
#include "../gpu/entry_points.h"
#include "../gpu/launch.h"
#include "check.h"
#include "cpu.h"
#include "entries.h"

namespace precast::decode_attention {
namespace {

// ---- which kernel serves which call ----
//
//   query and caches                                             kernel       a warp handles
//   float16 or bfloat16, all at multiples of 16 bytes, sm_80     decode_...   16 keys at a time, by matrix instructions
//   the same with caches of 8 bits, heads of up to 128           decode_narrow_...
//   anything else                                                decode_any   32 keys at a time, in float32
//
// `Shape` describes each kernel. A unit is up to 16 rows, the query heads that share a key head: the 16 rows of a
// matrix instruction. A block takes 64 of its keys at a time. The grid has as many blocks as are resident at once, and
// every block gets the same number of tiles of 64 keys (plan.cuh). The second launch, merge_parts, reduces rows whose
// keys were split over several blocks, and clears rows without keys. Both launches start early: their blocks become
// resident and wait while the previous launch still runs. If the tables have room for few keys, the blocks of a cluster
// share each unit and reduce it themselves, without the second launch.
//
// H100, bf16, 32 query heads of 128, as a share of the copy rate: 0.91 with 8 key heads and 0.85 with 4 at 64 sequences
// of 4096 keys; 0.89 and 0.88 at 16 of 16384; 0.89 and 0.81 at one of 131072. In two dependent
// launches, one sequence of 512 keys takes 8.9 us, and 9.3 us without the early start. Three blocks of two stages on a
// multiprocessor are 5 to 9 % faster than two blocks of three stages, and one block is 30 % slower because warps wait
// for their own arithmetic. Prefetching 256 bytes at a time into the L2 cache makes no difference.

constexpr int kShared = 65536, kShared256 = 73728, kSharedAny = 51200;  // bytes of a block
PRECAST_ENTRIES(DECODE_ATTENTION_KERNELS)

struct Shape {
  ByDType kernel;
  int width;  // the most elements of a key or a value
  int warps;
  int shared;  // bytes
  int blocks;  // per multiprocessor, by registers
};

constexpr Shape kShapes[] = {
    {{kNoEntry, entry::decode_64_f16, entry::decode_64_bf16}, 64, 4, kShared, 3},
    {{kNoEntry, entry::decode_128_f16, entry::decode_128_bf16}, 128, 4, kShared, 3},
    {{kNoEntry, entry::decode_256_f16, entry::decode_256_bf16}, 256, 2, kShared256, 3},
    {{kNoEntry, entry::decode_narrow_f16, entry::decode_narrow_bf16}, 128, 4, kShared, 3},
    {entry::decode_any, 256, 4, kSharedAny, 3},
};
constexpr int kNarrowShape = 3, kAnyShape = 4;

KernelFamily kernels = {"decode_attention", kEntries, entry::kCount};

constexpr int64_t kTile = 64;  // keys per step of a block

// A cluster handles a unit, without a second launch, if even full tables give no block more tiles than this.
constexpr int64_t kMostClusterTiles = 4;

// The number of blocks in a cluster: a power of two. 0: the tiles of all units are split evenly.
int64_t cluster_for(int64_t tiles, int64_t units, int64_t resident, bool has_clusters) {
  int64_t size = has_clusters ? kMostCluster : 1;
  while (size > 1 && (size * units > resident || size >= 2 * tiles)) size /= 2;
  return tiles <= size * kMostClusterTiles && size * units <= resident ? size : 0;
}

// From this number of parts per row on, if the units share the blocks evenly, a row's block gets more warps to merge
// them.
constexpr int64_t kManyParts = 16;
constexpr uint32_t kMergeThreads = 128, kManyMergeThreads = 512;

uint64_t misaligned(const Attention& a) {
  const int64_t bytes = cache_bytes(a.cache_dtype);
  return misalignment(a.query, a.query_sequence | a.query_token | a.query_head) |
         misalignment(a.keys, a.key_block | a.key_position | a.key_head | a.key_piece) |
         misalignment(a.values, a.value_block | a.value_position | a.value_head) |
         (static_cast<uint64_t>((a.key_piece_width | a.value_piece_width) * bytes) & 15);
}

int shape_for(const Attention& a, int32_t device) {
  const bool narrow = a.cache_dtype >= kCacheE4M3, served = a.dtype != 0 && (narrow || a.cache_dtype == a.dtype);
  if (!served || misaligned(a) != 0 || kernels.devices[device].believed_major < 8) return kAnyShape;
  const int width = a.key_width > a.value_width ? a.key_width : a.value_width;
  if (narrow) return width <= kShapes[kNarrowShape].width ? kNarrowShape : kAnyShape;
  return width <= 64 ? 0 : width <= 128 ? 1 : 2;
}

Tensor scratch(int64_t count, int32_t dtype, const Tensor& like) { return empty(&count, 1, dtype, like); }

void attend_cuda(const Tensor& query, Attention& call) {
  const int32_t device = query.device_index();
  prepare(kernels, device);
  const int chosen = shape_for(call, device);
  const Shape& shape = kShapes[chosen];
  DecodeArgs args = {};
  args.call = call;
  args.block_size = division_by(call.block_size);
  const int64_t chunks = call.key_piece_width * cache_bytes(call.cache_dtype) / 16;
  args.pieces = division_by(chunks > 0 ? chunks : 1);
  // As many blocks as are resident at a time, or fewer if even full tables have fewer tiles.
  const int64_t room = block_shared_bytes(device) + 1024, each = shape.shared + 1024 + kStaticSharedBytes;
  const int64_t resident = room / each < 1 ? 1 : room / each > shape.blocks ? shape.blocks : room / each;
  const int64_t rows = int64_t{call.heads} / call.kv_heads * call.queries, tiles = (rows + kRows - 1) / kRows;
  const int64_t keys = (int64_t{call.table_blocks} * call.block_size + kTile - 1) / kTile;
  const int64_t units = int64_t{call.sequences} * call.kv_heads * tiles, most = keys * units,
                all = multiprocessors(device) * resident;
  args.cluster =
      chosen == kAnyShape ? 0 : static_cast<int>(cluster_for(keys, units, all, has_clusters(kernels, device)));
  args.blocks = static_cast<int>(args.cluster != 0 ? units * args.cluster : most < 1 ? 1 : most < all ? most : all);
  const int entry = shape.kernel[static_cast<DType>(call.dtype)];
  void* arguments[] = {&args};
  LaunchShape decode = {static_cast<uint32_t>(args.blocks), 1, static_cast<uint32_t>(shape.warps * 32), 1,
                        static_cast<uint32_t>(shape.shared)};
  decode.early = true;
  if (args.cluster != 0) {
    decode.cluster = static_cast<uint32_t>(args.cluster);
    launch(kernels, device, entry, decode, arguments);
    return;
  }
  const Tensor parts = scratch(int64_t{args.blocks} * 2 * kRows * (call.value_width + 2), float32_code(), query);
  const Tensor starts = scratch(int64_t{call.sequences} + 1, aoti_torch_dtype_int64(), query);
  args.parts = static_cast<float*>(parts.mutable_data());
  args.starts = static_cast<long long*>(starts.mutable_data());
  const int64_t results = int64_t{call.sequences} * call.queries * call.heads;
  const uint32_t threads = args.blocks / units >= kManyParts ? kManyMergeThreads : kMergeThreads;
  LaunchShape merge = {static_cast<uint32_t>(results), 1, threads, 1,
                       threads / 32 * kMergeLine * static_cast<uint32_t>(sizeof(float))};
  merge.early = true;
  launch(kernels, device, entry, decode, arguments);
  launch(kernels, device, entry::merge_parts, merge, arguments);
}

// ---- the CPU ----

int64_t integer_at(const char* data, int64_t at, bool is_long) {
  return is_long ? reinterpret_cast<const int64_t*>(data)[at] : reinterpret_cast<const int32_t*>(data)[at];
}

// Checks lengths and the blocks they use before anything is read or written. Fills `lengths` and `starts`. Returns the
// number of keys.
int64_t check_sequences(const Attention& a, int64_t* lengths, int64_t* starts) {
  starts[0] = 0;
  int64_t keys = 0;
  const int64_t room = int64_t{a.table_blocks} * a.block_size;
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t length = integer_at(a.lengths, s * a.length_stride, (a.flags & kLongLengths) != 0);
    PRECAST_CHECK(length >= 0 && length <= room,
                  "%s: lengths[%lld] is %lld and the blocks of a sequence have room for %lld tokens; needed 0 to that",
                  kOp, printable(s), printable(length), printable(room));
    const int64_t oldest = length - a.queries - a.window + 1, first = a.window != 0 && oldest > 0 ? oldest : 0;
    for (int64_t i = first / a.block_size; i * a.block_size < length; ++i) {
      const int64_t block = integer_at(a.tables, s * a.table_row + i, (a.flags & kLongTables) != 0);
      PRECAST_CHECK(block >= 0 && block < a.blocks,
                    "%s: block_tables[%lld, %lld] is %lld and the caches have %lld blocks; needed one of these", kOp,
                    printable(s), printable(i), printable(block), printable(a.blocks));
    }
    lengths[s] = length;
    starts[s + 1] = starts[s] + (length + kChunk - 1) / kChunk - (length > 0 ? first / kChunk : 0);
    keys += length - (length > 0 ? first : 0);
  }
  return keys;
}

// Fills the table of an 8-bit type: a sign, then exponent and mantissa as in a wider float with another exponent bias.
void fill_narrow(int type, float* numbers) {
  for (int bits = 0; bits < 256; ++bits) {
    const int magnitude = bits & 127, mantissa_bits = type == kCacheE4M3 ? 3 : 2, bias = type == kCacheE4M3 ? 7 : 15;
    const int exponent = magnitude >> mantissa_bits, mantissa = magnitude & ((1 << mantissa_bits) - 1);
    float value = static_cast<float>(exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits));
    const int power = (exponent == 0 ? 1 : exponent) - bias - mantissa_bits;
    for (int i = 0; i < power; ++i) value *= 2;
    for (int i = 0; i > power; --i) value /= 2;
    if (type == kCacheE4M3 && magnitude == 127) value = __builtin_nanf("");
    if (type == kCacheE5M2 && exponent == 31) value = mantissa == 0 ? __builtin_inff() : __builtin_nanf("");
    numbers[bits] = bits < 128 ? value : -value;
  }
}

// What a multiply-add with an element of a cache takes one thread, for parallel_rows; each key has a fixed cost too.
constexpr int64_t kProductPs = 20, kKeyProducts = 64;

void attend_cpu(const Tensor& query, Attention& call) {
  const int64_t sequences = call.sequences, rows = int64_t{call.heads} / call.kv_heads * call.queries;
  const Tensor numbers = scratch(2 * sequences + 1, aoti_torch_dtype_int64(), query);
  int64_t* const lengths = static_cast<int64_t*>(numbers.mutable_data());
  int64_t* const starts = lengths + sequences;
  const int64_t keys = check_sequences(call, lengths, starts) * call.kv_heads;
  const int64_t results = sequences * call.queries * call.heads, stride = call.value_width + 2;
  const Tensor sums = scratch(results + starts[sequences] * call.kv_heads * rows * stride, float32_code(), query);
  float* const first = static_cast<float*>(sums.mutable_data());
  float narrow[256];
  if (call.cache_dtype >= kCacheE4M3) fill_narrow(call.cache_dtype, narrow);
  const Work work = {call, lengths, starts, narrow, first + results, first};
  const WorkFunction attend = PRECAST_AT_CPU_LEVEL(decode_attention, attend_chunks);
  const WorkFunction merge = PRECAST_AT_CPU_LEVEL(decode_attention, merge_rows);
  const int64_t products = kKeyProducts + rows * (call.key_width + call.value_width);
  parallel_rows(keys, products * kProductPs, [&](int64_t begin, int64_t end) { attend(work, begin, end); });
  parallel_rows(results, stride * kProductPs * 4, [&](int64_t begin, int64_t end) {
    merge(work, begin, end);
    for (int64_t i = begin; i < end; ++i) call.lse[i] += __builtin_logf(work.sums[i]);
  });
}

// ---- the op, once for both devices ----

using AttendFunction = void (*)(const Tensor& query, Attention& call);

__attribute__((noinline)) TensorPair attention(const Tensors& t, double scale, int64_t window, double softcap,
                                               AttendFunction attend) {
  Attention call = check_call(t, scale, window, softcap);
  const int64_t sizes[] = {call.sequences, call.queries, call.heads, call.value_width};
  TensorPair result(empty(sizes, 4, t.query.dtype_code(), t.query), empty(sizes, 3, float32_code(), t.query));
  if (call.sequences == 0) return result;
  const Tensor query = last_is_contiguous(t.query) ? another(t.query) : contiguous(t.query);
  place(t, query, &call);
  call.out = static_cast<char*>(result.first.mutable_data());
  call.lse = static_cast<float*>(result.second.mutable_data());
  attend(query, call);
  return result;
}

template <AttendFunction attend>
TensorPair attention_op(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                        const Tensor& block_tables, const Tensor& lengths, double scale, int64_t window, double softcap,
                        const Tensor* slopes, const Tensor* sinks, const Tensor* key_scale, const Tensor* value_scale) {
  return attention({query, key_cache, value_cache, block_tables, lengths, slopes, sinks, key_scale, value_scale}, scale,
                   window, softcap, attend);
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("paged_decode_attention", "CPU", attention_op<attend_cpu>),
    PRECAST_IMPLEMENTATION("paged_decode_attention", "CUDA", attention_op<attend_cuda>),
};
PRECAST_FAMILY(decode_attention, kImplementations, &kernels);

}  // namespace
}  // namespace precast::decode_attention
