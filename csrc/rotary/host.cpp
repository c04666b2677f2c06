// Rotary embedding: checks, allocation, and the choice of a kernel.
#include "../cpu/cpu_level.h"
#include "../gpu/entry_points.h"
#include "../gpu/launch.h"
#include "cpu.h"
#include "entries.h"
#include "in_place.h"
#include "normed.h"

namespace precast::rotary {
namespace {

// ---- which kernel serves which shape ----
//
//   heads and tables                                             kernel    a thread has
//   half of the rotated part, the rest, strides and pointers     rotary    two parts of 16 bytes, and the cosines and
//   at multiples of 16 bytes                                               sines of their pairs
//   the same, at multiples of 8 or of 4 (heads of 72 or of 100)  8; 4      two parts of 8 or 4 bytes
//   anything else (odd widths, unaligned views)                  any       one pair
//   4 and any, with many heads                                   _heads    the same of up to four heads
//   heads that are normalised, or whose products are rounded:  norm_rotary
//   16 bytes, up to 32 units of a head                                   two vectors; lanes of a warp share a head
//   the same, with rounded products and one 16-bit dtype         each    the same, two elements at a time
//   anything else                                                any     pairs of up to four heads, which have a warp
//
// Blocks always have 128 threads, numbered through the heads of all tokens: a head need not fill a block, and query and
// key share a launch. H200, bf16, 32 + 8 heads of 128, share of the copy rate at 16384 tokens: forward 0.92 (a copy_ of
// as many bytes 0.97), backward 0.93, in place 0.92, of a packed projection 0.93, neighbours 0.91, positions in random
// order 0.85, `any` 0.37. At 4096 tokens: 0.75 (copy_ 0.79). One step of 64 sequences takes 5.5 us, of one sequence 5.0
// us. Two or four heads per thread, which share the cosines and sines, or 256 threads: 0.915 to 0.922.

PRECAST_ENTRIES(ROTARY_KERNELS)

KernelFamily kernels = {"rotary", kEntries, entry::kCount};

// The kernel for parts of so many bytes. Parts of one element are `any`: four bytes are one float32. `heads`: a thread
// may have several heads.
ByDType kernel_for(int64_t part, bool heads) {
  constexpr ByDType kOfFour = {entry::rotary_f32_any, entry::rotary_f16_4, entry::rotary_bf16_4};
  constexpr ByDType kOfFourHeads = {entry::rotary_f32_any_heads, entry::rotary_f16_4_heads, entry::rotary_bf16_4_heads};
  return part == 16  ? PRECAST_BY_DTYPE(rotary, )
         : part == 8 ? PRECAST_BY_DTYPE(rotary, _8)
         : part == 4 ? (heads ? kOfFourHeads : kOfFour)
         : heads     ? PRECAST_BY_DTYPE(rotary, _any_heads)
                     : PRECAST_BY_DTYPE(rotary, _any);
}

constexpr uint32_t kThreads = 128;
// Maximum units per launch, so that unit numbers and the threads beyond the last unit stay below 2^31. grid.y has
// 65535.
constexpr int64_t kLaunchUnits = int64_t{1} << 30, kLaunchOuter = 65535;

// ---- the two devices ----

uint64_t misalignment(const Heads& heads) {
  const int64_t strides =
      heads.from_outer | heads.from_token | heads.from_head | heads.to_outer | heads.to_token | heads.to_head;
  return precast::misalignment(heads.from, strides) | precast::misalignment(heads.to, 0);
}

void check_size(const char* op, const Work& work) {
  const int64_t width = work.normed && work.width < 32 ? 32 : work.width;  // a head may have a warp
  PRECAST_CHECK(work.heads * width < kLaunchUnits,
                "%s: a token has %lld heads of %lld elements; needed fewer than "
                "2^30 elements",
                op, printable(work.heads), printable(work.width));
}

// How many heads a thread has, up to four: fewer if there were few threads, or so many heads in neither tensor.
int64_t heads_each(const Work& work, int64_t units, int32_t device) {
  constexpr int64_t kThreadsEach = 1024;  // on a multiprocessor
  const int64_t query = work.query_heads, key = work.heads - query, least = multiprocessors(device) * kThreadsEach;
  int64_t each = 4;
  while (each > 1 && ((query < each && key < each) || work.outer * work.tokens * work.heads * units / each < least)) {
    each /= 2;
  }
  return each;
}

// Launches a kernel over the heads of `args`, each of so many units, of which a thread has one in each of up to `each`
// heads; `arguments` has the address of its structure.
void launch_heads(const Work& work, RotaryArgs& args, int64_t units, int64_t each, int entry, int32_t device,
                  void** arguments) {
  const int64_t bytes = work.dtype == static_cast<int>(DType::kFloat32) ? 4 : 2;
  args.query = work.query;
  args.key = work.key;
  args.angles = work.angles;
  const int64_t query = work.query_heads, key = work.heads - query;
  const int64_t query_groups = (query + each - 1) / each, groups = query_groups + (key + each - 1) / each;
  args.groups = division_by(groups);
  args.units = division_by(units);
  args.query_groups = static_cast<unsigned>(query_groups);
  args.query_heads = static_cast<unsigned>(query);
  args.key_heads = static_cast<unsigned>(key);
  args.each = static_cast<unsigned>(each);
  args.head_bytes = static_cast<unsigned>(work.width * bytes);
  const int64_t per_token = groups * units, most = kLaunchUnits / per_token;
  for (int64_t outer = 0; outer < work.outer; outer += kLaunchOuter) {
    const int64_t height = work.outer - outer < kLaunchOuter ? work.outer - outer : kLaunchOuter;
    for (int64_t token = 0; token < work.tokens; token += most) {
      const int64_t tokens = work.tokens - token < most ? work.tokens - token : most;
      args.first_outer = outer;
      args.first_token = token;
      args.total = static_cast<unsigned>(tokens * per_token);
      const uint32_t blocks = (args.total + kThreads - 1) / kThreads;
      launch(kernels, device, entry, {blocks, static_cast<uint32_t>(height), kThreads, 1, 0}, arguments);
    }
  }
}

void norm_rotate_cuda(const Work& work, int32_t device) {
  const int64_t bytes = work.dtype == static_cast<int>(DType::kFloat32) ? 4 : 2;
  const NormUnits units =
      norm_units(work.angles, work.norm, work.width, bytes, misalignment(work.query) | misalignment(work.key));
  NormRotaryArgs args;
  args.norm = work.norm;
  constexpr ByDType kEach = {kNoEntry, entry::norm_rotary_f16_each, entry::norm_rotary_bf16_each};
  const ByDType kernel = units.words     ? kEach
                         : units.vectors ? PRECAST_BY_DTYPE(norm_rotary, )
                                         : PRECAST_BY_DTYPE(norm_rotary, _any);
  void* arguments[] = {&args};
  const int64_t each = units.vectors ? 1 : heads_each(work, units.lanes, device);
  launch_heads(work, args.heads, units.lanes, each, kernel[static_cast<DType>(work.dtype)], device, arguments);
}

void rotate_cuda(const Work& work, int32_t device) {
  if (work.normed) return norm_rotate_cuda(work, device);
  const Angles& angles = work.angles;
  const int64_t bytes = work.dtype == static_cast<int>(DType::kFloat32) ? 4 : 2;
  const int64_t half = angles.half, rest = work.in_place ? 0 : work.width - 2 * half;
  const uint64_t heads =
      misalignment(work.query) | misalignment(work.key) | static_cast<uint64_t>(half * bytes | rest * bytes);
  const uint64_t tables =
      precast::misalignment(angles.cos, angles.cos_stride) | precast::misalignment(angles.sin, angles.sin_stride);
  const int64_t table_bytes = (angles.flags & kWideTable) != 0 ? 4 : bytes;
  int64_t part = 16;  // the largest that heads are made of, and that finds its numbers in the tables aligned
  for (; part > bytes; part /= 2) {
    const int64_t numbers = part / bytes * table_bytes;
    const uint64_t needed = static_cast<uint64_t>(numbers < 16 ? numbers : 16) - 1;
    if ((heads & static_cast<uint64_t>(part - 1)) == 0 && (tables & needed) == 0) break;
  }
  const int64_t pairs = part / bytes;
  const int64_t units = half / pairs + (rest + 2 * pairs - 1) / (2 * pairs);
  if (units == 0) return;  // nothing is rotated, in place
  const int64_t each = part >= 8 ? 1 : heads_each(work, units, device);
  RotaryArgs args;
  void* arguments[] = {&args};
  launch_heads(work, args, units, each, kernel_for(part, each > 1)[static_cast<DType>(work.dtype)], device, arguments);
}

void check_work_positions(const char* op, const Work& work) { check_positions(op, work.angles, work.tokens); }

void rotate_cpu(const Work& work, int32_t) {
  if (work.norm.query_weight != nullptr) return norm_and_rotate_cpu(work);
  const RotateFunction rotate = PRECAST_AT_CPU_LEVEL(rotary, rotate_heads);
  parallel_for(0, work.outer * work.tokens * work.heads, grain_rows(work.width),
               [&](int64_t begin, int64_t end) { rotate(work, begin, end); });
}

// ---- the ops, the same for both devices ----

// Function pointers: another instance of the ops per device would add three kilobytes.
struct Device {
  void (*check)(const char* op, const Work& work);
  void (*rotate)(const Work& work, int32_t index);
};

constexpr Device kCpu = {check_work_positions, rotate_cpu}, kCuda = {check_size, rotate_cuda};

// A checked call, whose work has no tensors yet. An absent key has no heads.
struct Call {
  Call(const char* op, const Tensor& query, const Tensor* key, const Tables& tables, int flags)
      : query_shape(check_heads(op, {"query", query})),
        key_heads(key != nullptr ? check_more_heads(op, {"key", *key}, {"query", query}).heads : 0),
        angles(check_tables(op, tables, query_shape, {"query", query}, flags), query_shape, flags) {
    work.angles = angles.angles();
    work.outer = query_shape.outer;
    work.tokens = query_shape.tokens;
    work.query_heads = query_shape.heads;
    work.heads = query_shape.heads + key_heads;
    work.width = query_shape.width;
    work.dtype = static_cast<int>(query_shape.dtype);
  }
  bool is_nothing() const { return work.outer * work.tokens * work.heads * work.width == 0; }

  HeadsShape query_shape;
  int64_t key_heads;
  ReadAngles angles;
  Work work = {};
};

void read_from(Heads& heads, const void* data, const HeadStrides& strides, int64_t bytes) {
  heads.from = static_cast<const char*>(data);
  heads.from_outer = strides.outer * bytes;
  heads.from_token = strides.token * bytes;
  heads.from_head = strides.head * bytes;
}

void write_to(Heads& heads, void* data, const HeadStrides& strides, int64_t bytes) {
  heads.to = static_cast<char*>(data);
  heads.to_outer = strides.outer * bytes;
  heads.to_token = strides.token * bytes;
  heads.to_head = strides.head * bytes;
}

int directions(bool interleaved, bool inverse) { return (interleaved ? kInterleaved : 0) | (inverse ? kInverse : 0); }

TensorPair rotated(const Device& on, const char* op, Call& call, const Tensor& query, const Tensor* key) {
  on.check(op, call.work);
  constexpr int64_t kNothing[] = {0};
  TensorPair result(empty_contiguous_like(query),
                    key != nullptr ? empty_contiguous_like(*key) : empty(kNothing, 1, query.dtype_code(), query));
  if (call.is_nothing()) return result;
  const int64_t bytes = call.query_shape.element_bytes();
  const ReadHeads query_heads(query), key_heads(key != nullptr ? *key : query);
  read_from(call.work.query, query_heads.data(), query_heads.strides(), bytes);
  write_to(call.work.query, result.first.mutable_data(), head_strides(result.first), bytes);
  if (key != nullptr) {
    read_from(call.work.key, key_heads.data(), key_heads.strides(), bytes);
    write_to(call.work.key, result.second.mutable_data(), head_strides(result.second), bytes);
  }
  on.rotate(call.work, call.query_shape.device);
  return result;
}

void rotate_in_place(const Device& on, const Tensor& query, const Tensor* key, const Tensor& cos, const Tensor& sin,
                     const Tensor* positions, bool interleaved, bool inverse) {
  constexpr const char* kOp = "rotary_embedding_";
  const Tables tables = {cos, sin, positions};
  Call call(kOp, query, key, tables, directions(interleaved, inverse));
  on.check(kOp, call.work);
  if (call.is_nothing()) return;
  call.work.in_place = true;
  const WrittenHeads query_heads(kOp, {"query", query}, call.query_shape);
  check_apart(kOp, query_heads, {"query", query}, tables);
  read_from(call.work.query, query_heads.data, query_heads.strides, query_heads.bytes);
  write_to(call.work.query, query_heads.data, query_heads.strides, query_heads.bytes);
  if (key != nullptr) {
    HeadsShape key_shape = call.query_shape;
    key_shape.heads = call.key_heads;
    const WrittenHeads key_heads(kOp, {"key", *key}, key_shape);
    check_apart(kOp, key_heads, {"key", *key}, tables);
    PRECAST_CHECK(!overlap(query_heads, key_heads),
                  "rotary_embedding_: query and key overlap in memory; needed two that do not, as both are written");
    read_from(call.work.key, key_heads.data, key_heads.strides, key_heads.bytes);
    write_to(call.work.key, key_heads.data, key_heads.strides, key_heads.bytes);
  }
  on.rotate(call.work, call.query_shape.device);
}

template <const Device& on>
TensorPair rotary_op(const Tensor& query, const Tensor* key, const Tensor& cos, const Tensor& sin,
                     const Tensor* positions, bool interleaved, bool inverse) {
  constexpr const char* kOp = "rotary_embedding";
  Call call(kOp, query, key, {cos, sin, positions}, directions(interleaved, inverse));
  return rotated(on, kOp, call, query, key);
}

template <const Device& on>
TensorPair norm_rotary_op(const Tensor& query, const Tensor* key, const Tensor* query_weight, const Tensor* key_weight,
                          const Tensor& cos, const Tensor& sin, const Tensor* positions, double eps, int64_t casting,
                          bool interleaved, bool each_product, bool inverse) {
  constexpr const char* kOp = "rms_norm_rotary_embedding";
  const int flags = directions(interleaved, inverse) | (each_product ? kEachProduct : 0) | kWholeTable;
  Call call(kOp, query, key, {cos, sin, positions}, flags);
  const ReadNorm norm(kOp, {query_weight, key_weight, eps, casting}, call.query_shape, query, key != nullptr);
  call.work.normed = true;
  call.work.norm = norm.norm();
  return rotated(on, kOp, call, query, key);
}

template <const Device& on>
void rotary_in_place_op(const Tensor& query, const Tensor* key, const Tensor& cos, const Tensor& sin,
                        const Tensor* positions, bool interleaved, bool inverse) {
  rotate_in_place(on, query, key, cos, sin, positions, interleaved, inverse);
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("rotary_embedding", "CPU", rotary_op<kCpu>),
    PRECAST_IMPLEMENTATION("rms_norm_rotary_embedding", "CPU", norm_rotary_op<kCpu>),
    PRECAST_IMPLEMENTATION("rotary_embedding_", "CPU", rotary_in_place_op<kCpu>),
    PRECAST_IMPLEMENTATION("rotary_embedding", "CUDA", rotary_op<kCuda>),
    PRECAST_IMPLEMENTATION("rms_norm_rotary_embedding", "CUDA", norm_rotary_op<kCuda>),
    PRECAST_IMPLEMENTATION("rotary_embedding_", "CUDA", rotary_in_place_op<kCuda>),
};
PRECAST_FAMILY(rotary, kImplementations, &kernels);

}  // namespace
}  // namespace precast::rotary
