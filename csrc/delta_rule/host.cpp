// The gated delta rule: checks, the CPU implementation, and the choice of a kernel.
#include "../cpu/cpu_level.h"
#include "../gpu/entry_points.h"
#include "../gpu/launch.h"
#include "check.h"
#include "entries.h"

namespace precast::delta_rule {
namespace {

// ---- which kernel serves which call ----
//
//   states, keys and values                                kernel              a block of threads has
//   vectors of 16 bytes, keys of up to 64, 128 or 256      delta_rule_f32_128  columns of the state in registers
//   anything else                                          ..._any             the same, by element
//   prefill of 16 bits from sm_80 on, keys of 64 or 128    delta_chunks_...    the matrices of 64 tokens of a head
//                                                          delta_states_...    32 columns of the state of a head
//
// The state goes through a chunk of 64 tokens by matrix instructions. What does not need the state is computed before,
// for all chunks at once (chunk.cuh).

constexpr int kSharedChunks = 50176, kSharedStates = 200704;  // bytes of a block
PRECAST_ENTRIES(DELTA_RULE_KERNELS)

KernelFamily kernels = {"delta_rule", kEntries, entry::kCount};

constexpr uint32_t kThreads = 128;
constexpr int64_t kLeastTokens = 64;  // of a sequence on average, for the kernels by chunks

uint64_t misaligned(const Heads& heads) { return misalignment(heads.data, heads.token | heads.head); }
uint64_t misaligned(const States& states) { return misalignment(states.data, states.slot | states.head | states.row); }

// As long as a launch is this small, it starts while the one before it ends.
constexpr int64_t kEarlyThreads = 1024;  // on a multiprocessor

void step_cuda(Rule& rule, int32_t device) {
  const bool wide = rule.state_dtype == 0;
  const uint64_t bits = misaligned(rule.q) | misaligned(rule.k) | misaligned(rule.v) | misaligned(rule.from) |
                        misaligned(rule.to) | misalignment(rule.out, 0) |
                        static_cast<uint64_t>((rule.key_dim & 15) | (rule.value_dim & 7));
  const int64_t key_dim = bits != 0 ? kMostKeyDim + 1 : rule.key_dim;
  const int entry = key_dim <= 64    ? (wide ? entry::delta_rule_f32_64 : entry::delta_rule_bf16_64)
                    : key_dim <= 128 ? (wide ? entry::delta_rule_f32_128 : entry::delta_rule_bf16_128)
                    : bits == 0      ? (wide ? entry::delta_rule_f32_256 : entry::delta_rule_bf16_256)
                                     : (wide ? entry::delta_rule_f32_any : entry::delta_rule_bf16_any);
  void* arguments[] = {&rule};
  const int64_t columns = wide ? 32 : 64, units = int64_t{rule.sequences} * rule.value_heads;
  LaunchShape shape = {static_cast<uint32_t>(units * ((rule.value_dim + columns - 1) / columns)), 1,
                       key_dim <= 128 ? 128u
                       : bits == 0    ? 256u
                                      : 512u,
                       1, 0};
  shape.early = int64_t{shape.blocks_x} * shape.threads_x <= kEarlyThreads * multiprocessors(device);
  if (shape.early) rule.flags |= kEarly;
  launch(kernels, device, entry, shape, arguments);
}

// The stages of shared memory that the second kernel by chunks has room for.
int stages_for(int64_t key_dim, int32_t device) {
  const int64_t fixed = key_dim * 64 + 2 * kChunk * 64, stage = (3 * key_dim / 16 + 6) * 512 * 4;
  const int64_t room = (block_shared_bytes(device) - kStaticSharedBytes - fixed) / stage;
  return static_cast<int>(room < 3 ? room : 3);
}

bool takes_chunks(const Rule& rule, int32_t device) {
  const uint64_t bits = misaligned(rule.q) | misaligned(rule.k) | misaligned(rule.v);
  return rule.q.dtype != 0 && (rule.key_dim == 64 || rule.key_dim == 128) && rule.value_dim % kBlockColumns == 0 &&
         rule.value_dim <= 128 && (rule.flags & kKeyGates) == 0 && bits == 0 &&
         rule.tokens >= kLeastTokens * rule.sequences && kernels.devices[device].believed_major >= 8 &&
         stages_for(rule.key_dim, device) > 0;
}

void chunks_cuda(const Rule& rule, const Tensor& like, int32_t device) {
  const int64_t chunks = rule.starts != nullptr ? rule.tokens / kChunk + rule.sequences
                                                : int64_t{(rule.length + kChunk - 1) / kChunk} * rule.sequences;
  PRECAST_CHECK(chunks * rule.value_heads < int64_t{1} << 31, "gated_delta_rule: v has %lld chunks; needed below 2^31",
                printable(chunks * rule.value_heads));
  const int64_t of_keys = chunks * rule.key_heads * kChunk * rule.key_dim;
  const int64_t of_heads = chunks * rule.value_heads * kChunk;
  const int64_t sizes[] = {2 * of_keys + of_heads * (rule.key_dim + rule.value_dim + kChunk)};
  const int64_t count[] = {chunks * rule.value_heads * kFactors};
  const Tensor room = empty(sizes, 1, like.dtype_code(), like), factors = empty(count, 1, float32_code(), like);
  ChunkArgs args = {};
  args.rule = rule;
  args.queries = static_cast<char*>(room.mutable_data());
  args.keys = args.queries + of_keys * 2;
  args.erased = args.keys + of_keys * 2;
  args.values = args.erased + of_heads * rule.key_dim * 2;
  args.scores = args.values + of_heads * rule.value_dim * 2;
  args.factors = static_cast<float*>(factors.mutable_data());
  args.stages = stages_for(rule.key_dim, device);
  const bool narrow = rule.key_dim == 64, half = rule.q.dtype == 1;
  void* arguments[] = {&args};
  const uint32_t shared = static_cast<uint32_t>(kChunk * 2 * rule.key_dim + kChunk * 256 + kChunk * 68 * 4);
  LaunchShape shape = {static_cast<uint32_t>(chunks * rule.value_heads), 1, kThreads, 1, shared};
  launch(kernels, device,
         narrow ? (half ? entry::delta_chunks_64_f16 : entry::delta_chunks_64_bf16)
                : (half ? entry::delta_chunks_128_f16 : entry::delta_chunks_128_bf16),
         shape, arguments);
  shape.blocks_x = static_cast<uint32_t>(int64_t{rule.sequences} * rule.value_heads * tiles_of(rule));
  shape.dynamic_shared_bytes =
      static_cast<uint32_t>(rule.key_dim * 64 + 2 * kChunk * 64 + args.stages * (3 * rule.key_dim / 16 + 6) * 512 * 4);
  launch(kernels, device,
         narrow ? (half ? entry::delta_states_64_f16 : entry::delta_states_64_bf16)
                : (half ? entry::delta_states_128_f16 : entry::delta_states_128_bf16),
         shape, arguments);
}

void run_cuda(const char*, Rule& rule, const Tensor& q) {
  const int32_t device = q.device_index();
  prepare(kernels, device);
  if (rule.indices == nullptr && takes_chunks(rule, device)) return chunks_cuda(rule, q, device);
  step_cuda(rule, device);
}

// ---- the CPU ----

void check_starts(const char* op, const Rule& rule) {
  int64_t last = 0;
  for (int64_t i = 0; i <= rule.sequences; ++i) {
    const int64_t start = integer_at(rule.starts, i * rule.starts_stride, (rule.flags & kLongStarts) != 0);
    PRECAST_CHECK(
        (i == 0 ? start == 0 : start >= last) && (i < rule.sequences ? start <= rule.tokens : start == rule.tokens),
        "%s: starts[%lld] is %lld after %lld, and there are %lld tokens; needed numbers that do not "
        "decrease, from 0 to that",
        op, printable(i), printable(start), printable(last), printable(rule.tokens));
    last = start;
  }
}

void check_indices(const char* op, const Rule& rule) {
  const bool each = (rule.flags & kEachToken) != 0;
  for (int64_t s = 0; s < rule.sequences; ++s) {
    for (int64_t i = 0; i < (each ? rule.length : 1); ++i) {
      const int64_t slot =
          integer_at(rule.indices, s * rule.index_sequence + i * rule.index_token, (rule.flags & kLongIndices) != 0);
      PRECAST_CHECK(slot < rule.slots,
                    "%s: indices has %lld for sequence %lld and there are %lld states; needed one of these, or a "
                    "negative number to leave it out",
                    op, printable(slot), printable(s), printable(rule.slots));
    }
    if (rule.accepted == nullptr) continue;
    const int64_t accepted = integer_at(rule.accepted, s * rule.accepted_stride, (rule.flags & kLongAccepted) != 0);
    PRECAST_CHECK(accepted >= 1 && accepted <= rule.length, "%s: accepted[%lld] is %lld; needed 1 to %d", op,
                  printable(s), printable(accepted), rule.length);
  }
}

// What a multiply-add with an element of the state takes one thread, for parallel_rows; a token has a fixed cost too.
constexpr int64_t kProductPs = 20, kTokenProducts = 2048;

void run_cpu(const char* op, Rule& rule, const Tensor&) {
  if (rule.starts != nullptr) check_starts(op, rule);
  if (rule.indices != nullptr) check_indices(op, rule);
  const RuleFunction run = PRECAST_AT_CPU_LEVEL(delta_rule, run);
  const int64_t tokens = rule.tokens / rule.sequences + 1;
  const int64_t products = tokens * (kTokenProducts + 4 * int64_t{rule.key_dim} * kBlockColumns);
  parallel_rows(rule.sequences * rule.value_heads * tiles_of(rule), products * kProductPs,
                [&](int64_t begin, int64_t end) { run(rule, begin, end); });
}

// ---- the ops, once for both devices ----

using RunFunction = void (*)(const char* op, Rule&, const Tensor& q);

// Returns the result, and the final states unless they are written in place.
__attribute__((noinline)) TensorPair apply(const char* op, const Tensors& t, double scale, bool l2_norm,
                                           RunFunction run) {
  check_tokens(op, t);
  const int64_t sequences = check_places(op, t);
  check_states(op, t.indices != nullptr ? "states" : "initial_state", t, sequences);
  PRECAST_CHECK(scale - scale == 0, "%s: scale is %g; needed a finite number", op, scale);
  const int64_t *q = t.q.sizes(), *v = t.v.sizes();
  TensorPair result(empty_contiguous_like(t.v), Tensor(nullptr));
  const int64_t sizes[] = {sequences, v[2], q[3], v[3]};
  const bool in_place = t.indices != nullptr;
  if (!in_place) result.second = empty(sizes, 4, t.states != nullptr ? t.states->dtype_code() : float32_code(), t.q);
  if (sequences == 0) return result;
  const bool key_gates = t.g != nullptr && t.g->dim() == 4;
  const ReadHeads queries(&t.q, 1), keys(&t.k, 1), values(&t.v, 1), gates(t.g, key_gates ? 1 : 0), betas(t.beta, 0);
  const Tensor states = t.states == nullptr                         ? Tensor(nullptr)
                        : in_place || last_is_contiguous(*t.states) ? another(*t.states)
                                                                    : contiguous(*t.states);
  Rule rule = {};
  rule.q = queries.heads();
  rule.k = keys.heads();
  rule.v = values.heads();
  rule.g = gates.heads();
  rule.beta = betas.heads();
  if (t.states != nullptr) rule.from = states_of(states);
  rule.to = in_place ? rule.from : states_of(result.second);
  if (t.starts != nullptr) {
    rule.starts = static_cast<const char*>(t.starts->data());
    rule.starts_stride = t.starts->strides()[0];
    rule.flags |= is_long(*t.starts) ? kLongStarts : 0;
  }
  if (in_place) {
    const int64_t* strides = t.indices->strides();
    rule.indices = static_cast<const char*>(t.indices->data());
    rule.index_sequence = strides[0];
    rule.index_token = t.indices->dim() == 2 ? strides[1] : 0;
    rule.slots = t.states->sizes()[0];
    rule.flags |= (is_long(*t.indices) ? kLongIndices : 0) | (t.indices->dim() == 2 ? kEachToken : 0);
  }
  if (t.accepted != nullptr) {
    rule.accepted = static_cast<const char*>(t.accepted->data());
    rule.accepted_stride = t.accepted->strides()[0];
    rule.flags |= is_long(*t.accepted) ? kLongAccepted : 0;
  }
  rule.tokens = q[0] * q[1];
  rule.out = static_cast<char*>(result.first.mutable_data());
  rule.out_dtype = rule.q.dtype;
  rule.state_dtype = static_cast<int>(dtype_of((in_place ? states : result.second).dtype_code()));
  rule.sequences = static_cast<int>(sequences);
  rule.length = static_cast<int>(q[1]);
  rule.key_heads = static_cast<int>(q[2]);
  rule.value_heads = static_cast<int>(v[2]);
  rule.key_dim = static_cast<int>(q[3]);
  rule.value_dim = static_cast<int>(v[3]);
  rule.scale = static_cast<float>(scale);
  rule.flags |= (l2_norm ? kL2Norm : 0) | (key_gates ? kKeyGates : 0);
  run(op, rule, t.q);
  return result;
}

template <RunFunction run>
TensorPair prefill_op(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor* g, const Tensor* beta,
                      const Tensor* initial_state, const Tensor* starts, double scale, bool l2_norm) {
  return apply("gated_delta_rule", {q, k, v, g, beta, initial_state, starts, nullptr, nullptr}, scale, l2_norm, run);
}

template <RunFunction run>
Tensor update_op(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor* g, const Tensor* beta,
                 const Tensor& states, const Tensor& indices, const Tensor* accepted, double scale, bool l2_norm) {
  return apply("gated_delta_rule_update_", {q, k, v, g, beta, &states, nullptr, &indices, accepted}, scale, l2_norm,
               run)
      .first;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("gated_delta_rule", "CPU", prefill_op<run_cpu>),
    PRECAST_IMPLEMENTATION("gated_delta_rule_update_", "CPU", update_op<run_cpu>),
    PRECAST_IMPLEMENTATION("gated_delta_rule", "CUDA", prefill_op<run_cuda>),
    PRECAST_IMPLEMENTATION("gated_delta_rule_update_", "CUDA", update_op<run_cuda>),
};
PRECAST_FAMILY(delta_rule, kImplementations, &kernels);

}  // namespace
}  // namespace precast::delta_rule
