// Keys and values into a paged cache: checks, the copy on the CPU, and the launch.
#include "../common/launch.h"
#include "../common/row_launch.h"
#include "cache.h"

namespace precast::kv_cache {
namespace {

// ---- how it is launched ----
//
// A row of threads has a token, one unit of its key and one of its value for each thread, up to 256; short rows share
// a block of 128. A decoding step of a few tokens is a launch and the way of one unit through memory: a token's own
// block is enough for that, and many tokens fill the GPU.

constexpr Entry kEntries[] = {{"reshape_and_cache"}};
constexpr int kEntryCount = sizeof(kEntries) / sizeof(kEntries[0]);

KernelFamily kernels = {"kv_cache", kEntries, kEntryCount};

constexpr int64_t kMostThreads = 256, kBlockThreads = 128;

// A token's copy, as both devices see it.
struct Copy {
  Heads key;
  Heads value;
  Cache key_cache;
  Cache value_cache;
  Slots slots;
};

// The bytes of the largest unit that everything is aligned to: pointers, strides, heads and pieces.
int64_t unit_bytes(const Call& call, const Copy& copy) {
  uint64_t misaligned = static_cast<uint64_t>(call.piece * call.element_bytes());
  for (const Heads& heads : {copy.key, copy.value}) misaligned |= misalignment(heads.data, heads.token | heads.head);
  for (const Cache& cache : {copy.key_cache, copy.value_cache}) {
    misaligned |= misalignment(cache.data, cache.block | cache.position | cache.head | cache.piece);
  }
  misaligned |= 16;
  return static_cast<int64_t>(misaligned & (~misaligned + 1));  // its lowest bit
}

void copy_cuda(const char* op, const Call& call, const Copy& copy) {
  const int64_t token_bytes = call.heads * call.width * call.element_bytes();
  PRECAST_CHECK(token_bytes < int64_t{1} << 31, "%s: the key of a token has %lld bytes; needed less than 2^31 on a GPU",
                op, printable(token_bytes));
  if (call.slots == 0) return;
  CopyArgs args = {copy.key, copy.value, copy.key_cache, copy.value_cache, copy.slots, 0, 0, 0, 0, 0};
  const int64_t bytes = unit_bytes(call, copy);
  args.units = static_cast<unsigned>(token_bytes / bytes);
  args.head_units = static_cast<unsigned>(call.width * call.element_bytes() / bytes);
  args.piece_units = static_cast<unsigned>(call.piece * call.element_bytes() / bytes);
  args.unit_bytes = static_cast<unsigned>(bytes);
  RowKernel rows = {0, warps_for(args.units < kMostThreads ? args.units : kMostThreads), 1, 0};
  if (rows.threads < kBlockThreads) rows.rows = static_cast<uint32_t>(kBlockThreads / rows.threads);
  void* arguments[] = {&args};
  for_launches(call.tokens, rows, [&](int64_t begin, unsigned tokens, const LaunchShape& shape) {
    args.key.data = copy.key.data + begin * copy.key.token;
    args.value.data = copy.value.data + begin * copy.value.token;
    args.slots.data = copy.slots.data + begin * copy.slots.stride;
    args.tokens = tokens;
    launch(kernels, call.device, rows.kernel, shape, arguments);
  });
}

// ---- the CPU: nothing is computed, so there is nothing for its vector units ----

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

void copy_cpu(const char* op, const Call& call, const Copy& copy) {
  const auto slot_of = [&](int64_t token) { return static_cast<int64_t>(copy.slots.data[token * copy.slots.stride]); };
  for (int64_t token = 0; token < call.tokens; ++token) {
    PRECAST_CHECK(slot_of(token) < call.slots,
                  "%s: slot_mapping[%lld] is %lld and the caches have %lld slots; needed one of these, or a negative "
                  "number to leave the token out",
                  op, printable(token), printable(slot_of(token)), printable(call.slots));
  }
  parallel_for(0, call.tokens, grain_rows(call.heads * call.width), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t slot = slot_of(token);
      if (slot < 0) continue;
      copy_heads(call, copy.key, copy.key_cache, call.piece, token, slot);
      copy_heads(call, copy.value, copy.value_cache, call.width, token, slot);
    }
  });
}

// ---- the op, the same for both devices ----

using Put = void (*)(const char* op, const Call&, const Copy&);

template <Put put>
void reshape_and_cache_op(const Tensor& key, const Tensor& value, const Tensor& key_cache, const Tensor& value_cache,
                          const Tensor& slot_mapping) {
  constexpr const char* op = "reshape_and_cache";
  const Call call = check_call(op, {key, value, key_cache, value_cache, slot_mapping});
  if (call.is_empty()) return;
  const ReadHeads keys(call, key), values(call, value);
  put(op, call,
      {keys.heads(), values.heads(), key_cache_of(call, key_cache),
       value_cache_of(call, value_cache, key_cache.dim() == 5), slots_of(call, slot_mapping)});
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("reshape_and_cache", "CPU", reshape_and_cache_op<copy_cpu>),
    PRECAST_IMPLEMENTATION("reshape_and_cache", "CUDA", reshape_and_cache_op<copy_cuda>),
};
PRECAST_FAMILY(kv_cache, kImplementations, &kernels);

}  // namespace
}  // namespace precast::kv_cache
