// Stores keys and values in a paged cache: checks, the CPU implementation, and the choice of a kernel.
#include "../cpu/cpu_level.h"
#include "../gpu/launch.h"
#include "../gpu/row_launch.h"
#include "../rotary/cpu.h"
#include "../rotary/in_place.h"
#include "../rotary/normed.h"
#include "cache.h"
#include "entries.h"

namespace precast::kv_cache {
namespace {

// ---- how the kernels are launched ----
//
//   unchanged        reshape_and_cache    a row of threads has a token; each thread takes one unit of its key and one
//                                         of its value at a time; up to 256 threads; short rows share a block of 128
//   rotated          rotary_and_cache     a thread has two vectors of 16 bytes of one head of query, key or value;
//                                         blocks of 128 threads, numbered through the heads of all tokens
//   unaligned        ..._any              the same with two elements
//   normalised too   norm_rotary_and_cache  the same two vectors; lanes of a warp share a head
//   unaligned        ..._any              a warp has a head
//
// A decoding step of a few tokens costs a launch and the memory latency of one unit, whatever the shape of the blocks.

PRECAST_ENTRIES(KV_CACHE_KERNELS)

KernelFamily kernels = {"kv_cache", kEntries, entry::kCount};

constexpr int64_t kMostThreads = 256, kBlockThreads = 128;

// Maximum units per launch, so that unit numbers and the threads beyond the last unit stay below 2^31.
constexpr int64_t kLaunchUnits = int64_t{1} << 30;

void check_size(const char* op, int64_t heads, int64_t width) {
  PRECAST_CHECK(heads * width < kLaunchUnits,
                "%s: a token has %lld heads of %lld elements; needed fewer than 2^30 in all", op, printable(heads),
                printable(width));
}

// ---- unchanged ----

struct Copy {
  Heads key;
  Heads value;
  Target target;
};

void copy_cuda(const char* op, const Call& call, const Copy& copy) {
  check_size(op, call.heads, call.width);
  if (call.slots == 0) return;
  const uint64_t bits = copy.target.misaligned(call) | misaligned(copy.key) | misaligned(copy.value) | 16;
  const int64_t bytes = call.element_bytes(), unit = static_cast<int64_t>(bits & (~bits + 1));  // the lowest bit
  CopyArgs args;
  args.key_cache = copy.target.key_cache;
  args.value_cache = copy.target.value_cache;
  args.slots = copy.target.slots;
  args.head_units = division_by(call.width * bytes / unit);
  args.key_piece_units = division_by(call.key_piece * bytes / unit);
  args.value_piece_units = division_by(call.value_piece * bytes / unit);
  args.units = static_cast<unsigned>(call.heads * call.width * bytes / unit);
  args.unit_bytes = static_cast<unsigned>(unit);
  RowKernel rows = {entry::reshape_and_cache, warps_for(args.units < kMostThreads ? args.units : kMostThreads), 1, 0};
  if (rows.threads < kBlockThreads) rows.rows = static_cast<uint32_t>(kBlockThreads / rows.threads);
  void* arguments[] = {&args};
  for_launches(call.tokens, rows, [&](int64_t begin, unsigned tokens, const LaunchShape& shape) {
    args.key = {copy.key.data + begin * copy.key.token, copy.key.token, copy.key.head};
    args.value = {copy.value.data + begin * copy.value.token, copy.value.token, copy.value.head};
    args.slots.data = copy.target.slots.data + begin * copy.target.slots.stride;
    args.tokens = tokens;
    launch(kernels, call.device, entry::reshape_and_cache, shape, arguments);
  });
}

// On the CPU this work gains nothing from vector units.
void copy_heads(const Call& call, const Heads& from, const Cache& to, int64_t piece, int64_t token, int64_t slot) {
  const int64_t bytes = call.element_bytes();
  const char* head = from.data + token * from.token;
  char* target = to.data + slot / call.block_size * to.block + slot % call.block_size * to.position;
  for (int64_t i = 0; i < call.heads; ++i, head += from.head, target += to.head) {
    for (int64_t k = 0; k * piece < call.width; ++k) {
      memcpy(target + k * to.piece, head + k * piece * bytes, static_cast<size_t>(piece * bytes));
    }
  }
}

int64_t slot_of(const Slots& slots, int64_t token) { return slots.data[token * slots.stride]; }

void check_slots(const char* op, const Call& call, const Slots& slots) {
  for (int64_t token = 0; token < call.tokens; ++token) {
    const int64_t slot = slot_of(slots, token);
    PRECAST_CHECK(slot < call.slots,
                  "%s: slot_mapping[%lld] is %lld and the caches have %lld slots; needed one of these, or a negative "
                  "number to leave the token out",
                  op, printable(token), printable(slot), printable(call.slots));
  }
}

void copy_cpu(const char* op, const Call& call, const Copy& copy) {
  const Target& target = copy.target;
  check_slots(op, call, target.slots);
  parallel_for(0, call.tokens, grain_rows(call.heads * call.width), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t slot = slot_of(target.slots, token);
      if (slot < 0) continue;
      copy_heads(call, copy.key, target.key_cache, call.key_piece, token, slot);
      if (!call.only_keys) copy_heads(call, copy.value, target.value_cache, call.value_piece, token, slot);
    }
  });
}

// One copy for both devices: a second copy of the checks would add a tenth of a megabyte to all the libraries of a
// wheel.
using CopyFunction = void (*)(const char* op, const Call&, const Copy&);

__attribute__((noinline)) void reshape_and_cache(const Tensors& tensors, CopyFunction copy) {
  constexpr const char* kOp = "reshape_and_cache";
  const Call call = check_call(kOp, tensors);
  if (call.is_nothing()) return;
  const rotary::ReadHeads keys(tensors.key), values(tensors.value);
  copy(kOp, call, {heads_of(call, keys), heads_of(call, values), Target(call, tensors)});
}

template <CopyFunction copy>
void reshape_and_cache_op(const Tensor& key, const Tensor* value, const Tensor& key_cache, const Tensor* value_cache,
                          const Tensor& slot_mapping) {
  PRECAST_CHECK((value == nullptr) == (value_cache == nullptr),
                "reshape_and_cache: %s is None and %s is not; needed both, or neither to write keys alone",
                value == nullptr ? "value" : "value_cache", value == nullptr ? "value_cache" : "value");
  if (value == nullptr) return reshape_and_cache({key, key, key_cache, key_cache, slot_mapping, true}, copy);
  reshape_and_cache({key, *value, key_cache, *value_cache, slot_mapping}, copy);
}

// ---- rotated ----

struct Rotation {
  rotary::WrittenHeads query;
  int64_t query_heads;
  rotary::WrittenHeads key;
  Heads value;
  rotary::Angles angles;
  Target target;
  bool normed = false;
  rotary::HeadNorm norm = {};
};

WrittenHeads in_bytes(const rotary::WrittenHeads& heads) {
  return {heads.data, heads.strides.token * heads.bytes, heads.strides.head * heads.bytes};
}

// The arguments of both kinds of kernel but for the units of a head. Returns the bits of what is not aligned to 16
// bytes.
uint64_t fill(const char* op, const Call& call, const Rotation& rotation, RotateArgs& args) {
  args.query = in_bytes(rotation.query);
  args.key = in_bytes(rotation.key);
  args.value = rotation.value;
  args.key_cache = rotation.target.key_cache;
  args.value_cache = rotation.target.value_cache;
  args.slots = rotation.target.slots;
  args.angles = rotation.angles;
  const int64_t bytes = call.element_bytes(), heads = rotation.query_heads + 2 * call.heads;
  check_size(op, heads, rotation.normed && call.width < 32 ? 32 : call.width);  // a head may have a warp
  args.heads = division_by(heads);
  args.key_piece_bytes = division_by(call.key_piece * bytes);
  args.value_piece_bytes = division_by(call.value_piece * bytes);
  args.query_heads = static_cast<unsigned>(rotation.query_heads);
  args.rotated_heads = static_cast<unsigned>(rotation.query_heads + call.heads);
  args.head_bytes = static_cast<unsigned>(call.width * bytes);
  uint64_t bits = rotation.target.misaligned(call) | misaligned(args.value);
  for (const WrittenHeads& one : {args.query, args.key}) bits |= misalignment(one.data, one.token | one.head);
  return bits;
}

// Launches a kernel over all heads, each of so many units; `arguments` has the address of its structure.
void launch_heads(const Call& call, RotateArgs& args, int64_t units, int entry, void** arguments) {
  args.units = division_by(units);
  const int64_t per_token = args.heads.divisor * units, most = kLaunchUnits / per_token;
  for (int64_t token = 0; token < call.tokens; token += most) {
    const int64_t tokens = call.tokens - token < most ? call.tokens - token : most;
    args.first_token = token;
    args.total = static_cast<unsigned>(tokens * per_token);
    const uint32_t blocks = static_cast<uint32_t>((args.total + kBlockThreads - 1) / kBlockThreads);
    launch(kernels, call.device, entry, {blocks, 1, kBlockThreads, 1, 0}, arguments);
  }
}

void norm_rotate_cuda(const char* op, const Call& call, const Rotation& rotation) {
  NormRotateArgs args;
  args.norm = rotation.norm;
  const uint64_t bits = fill(op, call, rotation, args.rotate);
  const rotary::NormUnits units =
      rotary::norm_units(rotation.angles, rotation.norm, call.width, call.element_bytes(), bits);
  constexpr ByDType kEach = {kNoEntry, entry::norm_rotary_and_cache_f16_each, entry::norm_rotary_and_cache_bf16_each};
  const ByDType kernel = units.words     ? kEach
                         : units.vectors ? PRECAST_BY_DTYPE(norm_rotary_and_cache, )
                                         : PRECAST_BY_DTYPE(norm_rotary_and_cache, _any);
  void* arguments[] = {&args};
  launch_heads(call, args.rotate, units.lanes, kernel[call.dtype], arguments);
}

void rotate_cuda(const char* op, const Call& call, const Rotation& rotation) {
  if (rotation.normed) return norm_rotate_cuda(op, call, rotation);
  RotateArgs args;
  const int64_t bytes = call.element_bytes(), half = rotation.angles.half, rest = call.width - 2 * half;
  const uint64_t bits = fill(op, call, rotation, args) | misalignment(args.angles.cos, args.angles.cos_stride) |
                        misalignment(args.angles.sin, args.angles.sin_stride) |
                        (static_cast<uint64_t>(half * bytes | rest * bytes) & 15);
  const int64_t pairs = bits == 0 ? 16 / bytes : 1, units = half / pairs + (rest + 2 * pairs - 1) / (2 * pairs);
  const ByDType kernel = bits == 0 ? PRECAST_BY_DTYPE(rotary_and_cache, ) : PRECAST_BY_DTYPE(rotary_and_cache, _any);
  void* arguments[] = {&args};
  launch_heads(call, args, units, kernel[call.dtype], arguments);
}

// Normalises and rotates first and then stores. The rotation is that of rotary_embedding_.
void rotate_cpu(const char* op, const Call& call, const Rotation& rotation) {
  rotary::check_positions(op, rotation.angles, call.tokens);
  check_slots(op, call, rotation.target.slots);
  rotary::Work work = {};
  const auto heads = [](const WrittenHeads& one) {
    return rotary::Heads{one.data, one.data, 0, one.token, one.head, 0, one.token, one.head};
  };
  const WrittenHeads query = in_bytes(rotation.query), key = in_bytes(rotation.key);
  work.query = heads(query);
  work.key = heads(key);
  work.angles = rotation.angles;
  work.outer = 1;
  work.tokens = call.tokens;
  work.query_heads = rotation.query_heads;
  work.heads = rotation.query_heads + call.heads;
  work.width = call.width;
  work.dtype = static_cast<int>(call.dtype);
  work.in_place = true;
  work.norm = rotation.norm;
  if (rotation.norm.query_weight != nullptr) {
    rotary::norm_and_rotate_cpu(work);
  } else {
    const rotary::RotateFunction rotate = PRECAST_AT_CPU_LEVEL(rotary, rotate_heads);
    parallel_for(0, work.tokens * work.heads, grain_rows(work.width),
                 [&](int64_t begin, int64_t end) { rotate(work, begin, end); });
  }
  copy_cpu(op, call, {{key.data, key.token, key.head}, rotation.value, rotation.target});
}

using RotateFunction = void (*)(const char* op, const Call&, const Rotation&);

// `norms`: null for the op that only rotates. `flags`: of the angles.
__attribute__((noinline)) void rotary_and_cache(const char* op, const Tensor& query, const Tensors& tensors,
                                                const rotary::Tables& tables, const rotary::Norms* norms, int flags,
                                                RotateFunction rotate) {
  const Tensor &key = tensors.key, &value = tensors.value;
  const Call call = check_call(op, tensors);
  const rotary::HeadsShape query_shape = rotary::check_heads(op, {"query", query});
  const rotary::HeadsShape key_shape = rotary::check_more_heads(op, {"key", key}, {"query", query});
  rotary::check_tables(op, tables, query_shape, {"query", query}, flags);
  const rotary::ReadNorm norm(op, norms != nullptr ? *norms : rotary::Norms{}, query_shape, query, true);
  if (call.tokens == 0 || call.width == 0 || query_shape.heads + call.heads == 0) return;
  const rotary::ReadAngles angles(tables, query_shape, flags);
  const rotary::ReadHeads values(value);
  const Rotation rotation = {{op, {"query", query}, query_shape},
                             query_shape.heads,
                             {op, {"key", key}, key_shape},
                             heads_of(call, values),
                             angles.angles(),
                             Target(call, tensors),
                             norms != nullptr,
                             norm.norm()};
  rotary::check_apart(op, rotation.query, {"query", query}, tables);
  rotary::check_apart(op, rotation.key, {"key", key}, tables);
  PRECAST_CHECK(!rotary::overlap(rotation.query, rotation.key),
                "%s: query and key overlap in memory; needed two that do not, as both are written", op);
  const Named caches[] = {{"key_cache", tensors.key_cache}, {"value_cache", tensors.value_cache}};
  for (const Named& cache : caches) {
    check_apart(op, {"query", query}, cache);
    check_apart(op, {"cos", tables.cos}, cache);
    check_apart(op, {"sin", tables.sin}, cache);
    if (tables.positions != nullptr) check_apart(op, {"positions", *tables.positions}, cache);
  }
  for (const Named& rotated : {Named{"query", query}, {"key", key}}) {
    check_apart(op, {"value", value}, rotated);
    check_apart(op, {"slot_mapping", tensors.slot_mapping}, rotated);
  }
  if (norm.norm().query_weight != nullptr) {
    for (const Named& written : {Named{"query", query}, {"key", key}, caches[0], caches[1]}) {
      check_apart(op, {"query_weight", *norms->query_weight}, written);
      check_apart(op, {"key_weight", *norms->key_weight}, written);
    }
  }
  for (const Tensor* written : {&query, &key}) {
    PRECAST_CHECK(value.data() == nullptr || written->data() != value.data(),
                  "%s: value begins at one place in memory with query or key, which are written; needed its own", op);
  }
  rotate(op, call, rotation);
}

template <RotateFunction rotate>
void rotary_and_cache_op(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& cos,
                         const Tensor& sin, const Tensor& key_cache, const Tensor& value_cache,
                         const Tensor& slot_mapping, const Tensor* positions, bool interleaved) {
  rotary_and_cache("rotary_embedding_and_cache", query, {key, value, key_cache, value_cache, slot_mapping},
                   {cos, sin, positions}, nullptr, interleaved ? rotary::kInterleaved : 0, rotate);
}

template <RotateFunction rotate>
void norm_rotary_and_cache_op(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor* query_weight,
                              const Tensor* key_weight, const Tensor& cos, const Tensor& sin, const Tensor& key_cache,
                              const Tensor& value_cache, const Tensor& slot_mapping, const Tensor* positions,
                              double eps, int64_t casting, bool interleaved, bool each_product) {
  const rotary::Norms norms = {query_weight, key_weight, eps, casting};
  const int flags = (interleaved ? rotary::kInterleaved : 0) | (each_product ? rotary::kEachProduct : 0);
  rotary_and_cache("rms_norm_rotary_embedding_and_cache", query, {key, value, key_cache, value_cache, slot_mapping},
                   {cos, sin, positions}, &norms, flags | rotary::kWholeTable, rotate);
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("reshape_and_cache", "CPU", reshape_and_cache_op<copy_cpu>),
    PRECAST_IMPLEMENTATION("rotary_embedding_and_cache", "CPU", rotary_and_cache_op<rotate_cpu>),
    PRECAST_IMPLEMENTATION("rms_norm_rotary_embedding_and_cache", "CPU", norm_rotary_and_cache_op<rotate_cpu>),
    PRECAST_IMPLEMENTATION("reshape_and_cache", "CUDA", reshape_and_cache_op<copy_cuda>),
    PRECAST_IMPLEMENTATION("rotary_embedding_and_cache", "CUDA", rotary_and_cache_op<rotate_cuda>),
    PRECAST_IMPLEMENTATION("rms_norm_rotary_embedding_and_cache", "CUDA", norm_rotary_and_cache_op<rotate_cuda>),
};
PRECAST_FAMILY(kv_cache, kImplementations, &kernels);

}  // namespace
}  // namespace precast::kv_cache
