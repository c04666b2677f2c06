// Assigns keys to blocks, on the device, because lengths may change between replays of a CUDA graph.
//
// A unit is a key head and up to 16 of the rows that share it. A tile is 64 keys of one sequence for one unit. All
// tiles form one line, ordered by sequence, then unit, then key. Every block takes a run of the line. All runs are
// equally long, so the work is balanced even if sequence lengths differ. If a run ends inside a unit, several blocks
// hold partial softmaxes of the unit's rows, and merge_parts reduces them in block order. Results are deterministic.
//
// Short sequences take one launch: the blocks of a cluster share each unit and reduce it through shared memory.
#pragma once

#include "../gpu/early.cuh"
#include "args.h"

namespace precast {
namespace decode_attention {

constexpr int kTile = 64;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

DEVICE float log2_of(float v) {
  float result;
  asm("lg2.approx.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
}

DEVICE int lesser(int a, int b) { return a < b ? a : b; }
DEVICE int greater(int a, int b) { return a < b ? b : a; }

// A sequence's length, limited to the capacity of its table, and the tiles that its queries see.
struct Span {
  int length, oldest, first, tiles;  // `oldest`: the first key that a query sees; `first`: its tile
};

DEVICE Span span_of(const Attention& a, int sequence) {
  const i64 at = sequence * a.length_stride;
  const i64 given = (a.flags & kLongLengths) != 0 ? reinterpret_cast<const i64*>(a.lengths)[at]
                                                  : reinterpret_cast<const int*>(a.lengths)[at];
  const i64 room = static_cast<i64>(a.table_blocks) * a.block_size;  // below 2^31
  Span span;
  span.length = static_cast<int>(given < 0 ? 0 : given > room ? room : given);
  const i64 oldest = static_cast<i64>(span.length) - a.queries - a.window + 1;
  span.oldest = a.window != 0 && oldest > 0 ? static_cast<int>(oldest) : 0;
  span.first = span.oldest / kTile;
  span.tiles = span.length == 0 ? 0 : (span.length + kTile - 1) / kTile - span.first;
  return span;
}

DEVICE int rows_of(const Attention& a) { return a.heads / a.kv_heads * a.queries; }
DEVICE int row_tiles_of(const Attention& a) { return (rows_of(a) + kRows - 1) / kRows; }
DEVICE int units_of(const Attention& a) { return a.kv_heads * row_tiles_of(a); }

// The number of tiles per block.
DEVICE i64 run_of(i64 total, int blocks) {
  return static_cast<i64>(divided(static_cast<u64>(total + blocks - 1), static_cast<u64>(blocks)));
}

// The start of a block's run, and the sequence that contains that tile.
struct Start {
  i64 begin, end;
  i64 first;  // the number of the sequence's first tile
  int sequence;
};

// Every thread of the block calls this first. `sums` holds one number per warp. The first block also writes the starts
// of all sequences for merge_parts, whose blocks may become resident from here on.
DEVICE Start find_start(const DecodeArgs& args, i64* sums, Start* found) {
  launch_before_has_ended();
  next_launch_may_start();
  const Attention& a = args.call;
  const int threads = static_cast<int>(blockDim.x), me = static_cast<int>(threadIdx.x), lane = me & 31;
  const int each = (a.sequences + threads - 1) / threads;
  const int from = lesser(me * each, a.sequences), to = lesser(from + each, a.sequences);
  const int units = units_of(a);
  i64 mine = 0;
  for (int s = from; s < to; ++s) mine += span_of(a, s).tiles;
  mine *= units;
  i64 before = mine;  // inclusive for now
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const i64 other = __shfl_up_sync(0xffffffffu, before, distance);
    if (lane >= distance) before += other;
  }
  if (lane == 31) sums[me >> 5] = before;
  __syncthreads();
  i64 total = 0, base = 0;
  for (int warp = 0; warp < threads / 32; ++warp) {
    if (warp == me >> 5) base = total;
    total += sums[warp];
  }
  before += base - mine;  // exclusive
  const i64 run = run_of(total, args.blocks);
  const i64 begin = run * blockIdx.x, end = begin + run < total ? begin + run : total;
  const bool writes = blockIdx.x == 0;
  i64 next = before;
  const bool has_start = begin >= before && begin < before + mine;
  if (writes || has_start) {
    for (int s = from; s < to; ++s) {
      const i64 tiles = static_cast<i64>(span_of(a, s).tiles) * units;
      if (writes) args.starts[s] = next;
      if (has_start && begin >= next && begin < next + tiles) *found = {begin, end, next, s};
      next += tiles;
    }
  }
  if (writes && me == threads - 1) args.starts[a.sequences] = total;
  __syncthreads();
  if (begin >= end) return {begin, begin, 0, 0};
  return *found;
}

// The same if a cluster handles a unit: the blocks of the cluster divide the unit's tiles.
DEVICE Start start_in_cluster(const DecodeArgs& args) {
  launch_before_has_ended();
  next_launch_may_start();
  const Attention& a = args.call;
  const int number = static_cast<int>(blockIdx.x) / args.cluster, units = units_of(a), sequence = number / units;
  const int rank = static_cast<int>(blockIdx.x) - number * args.cluster, tiles = span_of(a, sequence).tiles;
  const int each = (tiles + args.cluster - 1) / args.cluster, from = lesser(rank * each, tiles);
  const i64 first = static_cast<i64>(number - sequence * units) * tiles;
  return {first + from, first + lesser(from + each, tiles), 0, sequence};
}

// The tiles of a block's run that belong to one unit.
struct Segment {
  int sequence, kv_head, first_row, rows;  // rows of the unit
  int length, oldest;
  int first_tile, tiles;
  bool whole;  // the segment has all tiles of the unit, so there is nothing to merge
  int slot;    // of its partial softmax, if not whole
};

// Calls body(segment) for each segment of the block's run. All threads follow the same path.
template <class Body>
DEVICE void for_segments(const DecodeArgs& args, const Start& start, const Body& body) {
  const Attention& a = args.call;
  const int units = units_of(a), row_tiles = row_tiles_of(a), rows = rows_of(a);
  i64 position = start.begin, first = start.first;
  int sequence = start.sequence;
  while (position < start.end) {
    const Span span = span_of(a, sequence);
    const i64 stop = first + static_cast<i64>(span.tiles) * units;
    while (position < start.end && position < stop) {
      const int within = static_cast<int>(position - first), unit = within / span.tiles;
      const int tile = within - unit * span.tiles;
      const i64 left = start.end - position;
      Segment s;
      s.sequence = sequence;
      s.kv_head = unit / row_tiles;
      s.first_row = (unit - s.kv_head * row_tiles) * kRows;
      s.rows = lesser(rows - s.first_row, kRows);
      s.length = span.length;
      s.oldest = span.oldest;
      s.first_tile = span.first + tile;
      s.tiles = left < span.tiles - tile ? static_cast<int>(left) : span.tiles - tile;
      s.whole = s.tiles == span.tiles && args.cluster == 0;
      s.slot = static_cast<int>(blockIdx.x) * 2 + (tile == 0 ? 1 : 0);
      body(s);
      position += s.tiles;
    }
    first = stop;
    ++sequence;
  }
}

// ---- rows ----

DEVICE int group_of(const Attention& a) { return a.heads / a.kv_heads; }

struct Row {
  int query, head, position;
};

DEVICE Row row_of(const Attention& a, const Segment& s, int row) {
  const int group = group_of(a), among = s.first_row + row, query = among / group;
  return {query, s.kv_head * group + among - query * group, s.length - a.queries + query};
}

DEVICE float key_factor(const Attention& a, int kv_head) {
  if (a.key_scales == nullptr) return a.scale;
  return a.scale * a.key_scales[(a.flags & kHeadKeyScales) != 0 ? kv_head : 0];
}
DEVICE float value_factor(const Attention& a, int kv_head) {
  if (a.value_scales == nullptr) return 1.0f;
  return a.value_scales[(a.flags & kHeadValueScales) != 0 ? kv_head : 0];
}

// Converts products to scores, in units of log 2.
struct Scoring {
  float factor;  // of a product; with a cap, of tanh's argument
  float cap;     // 0: none
  DEVICE explicit Scoring(const Attention& a, int kv_head) {
    const float f = key_factor(a, kv_head);
    cap = a.softcap * kLog2E;
    factor = a.softcap != 0.0f ? f / a.softcap : f * kLog2E;
  }
  // The score without the part that depends on the position.
  DEVICE float of(float product) const {
    const float x = product * factor;
    if (cap == 0.0f) return x;
    const float e = exp2_of(fabsf(x) * (-2.0f * kLog2E)), square = x * x;
    // Near zero, where 1 - e loses digits, tanh by its series.
    const float series = fmaf(x * square, fmaf(square, 2.0f / 15, -1.0f / 3), x);
    return (fabsf(x) < 0.0625f ? series : copysignf(__fdiv_rn(1.0f - e, 1.0f + e), x)) * cap;
  }
};

DEVICE bool is_seen(const Attention& a, int key, int position) {
  return key <= position && (a.window == 0 || key > position - a.window);
}

// The block of a key, or -1 if the caches have no such block.
DEVICE i64 block_at(const DecodeArgs& args, int sequence, int key, int* within) {
  const Attention& a = args.call;
  const int number = static_cast<int>(quotient(static_cast<u32>(key), args.block_size));
  *within = key - number * a.block_size;
  const i64 at = sequence * a.table_row + number;
  const i64 block = (a.flags & kLongTables) != 0 ? reinterpret_cast<const i64*>(a.tables)[at]
                                                 : reinterpret_cast<const int*>(a.tables)[at];
  return block >= 0 && block < a.blocks ? block : -1;
}

// ---- results ----

DEVICE i64 result_row(const Attention& a, int sequence, const Row& row) {
  return (static_cast<i64>(sequence) * a.queries + row.query) * a.heads + row.head;
}

// Four columns of a row of the result.
DEVICE void store_columns(const Attention& a, i64 row, int column, const float (&v)[4]) {
  if (a.dtype == 0) {
    *reinterpret_cast<float4*>(a.out + (row * a.value_width + column) * 4) = make_float4(v[0], v[1], v[2], v[3]);
    return;
  }
  const float low[2] = {v[0], v[1]}, high[2] = {v[2], v[3]};
  u32 first, second;
  if (a.dtype == 1) {
    first = Float16::pack(low), second = Float16::pack(high);
  } else {
    first = BFloat16::pack(low), second = BFloat16::pack(high);
  }
  *reinterpret_cast<uint2*>(a.out + (row * a.value_width + column) * 2) = make_uint2(first, second);
}

// Finishes a row: adds its sink, if any. Returns the factor of its sums, and the log of the sum of exponentials.
struct Closing {
  float factor, lse;
};
DEVICE Closing close_row(const Attention& a, int kv_head, int head, float most, float sum) {
  // A sink far above all scores must not overflow, so the greater of the two is the base.
  float keep = 1.0f;
  if (a.sinks != nullptr) {
    const float sink = a.sinks[head] * kLog2E, base = most > sink ? most : sink;
    keep = exp2_of(most - base);
    sum = sum * keep + exp2_of(sink - base);
    most = base;
  }
  const float factor = sum == 0.0f ? 0.0f : __fdiv_rn(keep * value_factor(a, kv_head), sum);
  return {factor, sum == 0.0f ? -infinity() : (most + log2_of(sum)) * kLn2};
}

// A partial softmax of a row: weighted sums of values, the maximum, and the sum of weights.
DEVICE float* part_sums(const DecodeArgs& args, int slot, int row) {
  return args.parts + (static_cast<i64>(slot) * kRows + row) * (args.call.value_width + 2);
}

}  // namespace decode_attention
}  // namespace precast
