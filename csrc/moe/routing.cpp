// Chooses the experts of tokens and sorts pairs by expert: the ops, their CPU implementation, and the choice of
// kernels.
#include <algorithm>

#include "../cpu/cpu_level.h"
#include "../gpu/entry_points.h"
#include "../gpu/launch.h"
#include "check.h"
#include "cpu.h"
#include "entries.h"
#include "sort.h"

namespace precast::moe {
namespace {

// ---- how the kernels are launched ----
//
//   gate            a warp per token, which chooses the experts in registers
//   gate_backward   a warp per token
//   sort_place      a block per chunk of pairs, divided among its warps. A single block, or a cluster, needs no other
//                   launch; else sort_count counts the pairs of each chunk first, and sort_scan sums the counts

constexpr int kSharedBytes = 48 * 1024, kGateSharedBytes = 48 * 1024;

PRECAST_ENTRIES(MOE_ROUTING_KERNELS)

KernelFamily kernels = {"moe_routing", kEntries, entry::kCount};

constexpr int64_t kWarpsPerBlock = 4, kLaunchRows = int64_t{1} << 30;

// ---- gating ----

struct Gating {
  Norm rows;  // rows of logits
  int64_t experts, k, groups, kept_groups;
  bool top_two, sigmoid, renormalize;
  float scale;
};

Norm check_logits(const char* op, const Tensor& logits) {
  Norm rows;
  rows.dtype_code = logits.dtype_code();
  rows.dtype = dtype_of(rows.dtype_code);
  rows.device = logits.device_index();
  rows.wide_columns = false;
  PRECAST_CHECK(rows.dtype != DType::kOther, "%s: logits is %s; needed float32, float16 or bfloat16", op,
                dtype_name(rows.dtype_code));
  const int64_t dim = logits.dim();
  PRECAST_CHECK(dim >= 1, "%s: logits has shape (); needed at least one dimension", op);
  rows.hidden = logits.sizes()[dim - 1];
  PRECAST_CHECK(rows.hidden >= 1 && rows.hidden <= kMostExperts, "%s: logits has %lld experts; needed 1 to %d", op,
                printable(rows.hidden), kMostExperts);
  rows.rows = 1;
  for (int64_t i = 0; i + 1 < dim; ++i) rows.rows *= logits.sizes()[i];
  return rows;
}

void check_choice(const char* op, const Gating& gating) {
  PRECAST_CHECK(gating.groups >= 1 && gating.experts % gating.groups == 0,
                "%s: %lld groups of %lld experts; needed a divisor of the number of experts", op,
                printable(gating.groups), printable(gating.experts));
  PRECAST_CHECK(gating.kept_groups >= 1 && gating.kept_groups <= gating.groups,
                "%s: kept_groups is %lld; needed 1 to %lld, the number of groups", op, printable(gating.kept_groups),
                printable(gating.groups));
  const int64_t most = gating.experts / gating.groups * gating.kept_groups;
  PRECAST_CHECK(gating.k >= 1 && gating.k <= most, "%s: k is %lld; needed 1 to %lld, the experts in reach", op,
                printable(gating.k), printable(most));
}

// The leading sizes of `like`, then `last`.
Tensor empty_rows(const Tensor& like, int64_t last, int32_t dtype) {
  constexpr int64_t kMostDims = 64;
  const int64_t dim = like.dim();
  PRECAST_CHECK(dim <= kMostDims, "topk_gating: logits has %lld dimensions; needed at most 64", printable(dim));
  int64_t sizes[kMostDims];
  std::copy(like.sizes(), like.sizes() + dim, sizes);
  sizes[dim - 1] = last;
  return empty(sizes, dim, dtype, like);
}

using Gate = void (*)(const Gating&, const ReadRows&, const float* bias, float* weights, int32_t* indices);

void gate_cuda(const Gating& gating, const ReadRows& logits, const float* bias, float* weights, int32_t* indices) {
  GatingArgs args = {};
  const int64_t bytes = gating.rows.element_bytes();
  args.bias = bias;
  args.stride = logits.stride() * bytes;
  args.group_size = division_by(gating.experts / gating.groups);
  args.experts = static_cast<int>(gating.experts);
  args.k = static_cast<int>(gating.k);
  args.groups = static_cast<int>(gating.groups);
  args.kept_groups = static_cast<int>(gating.kept_groups);
  args.flags =
      (gating.sigmoid ? kSigmoid : 0) | (gating.renormalize ? kRenormalize : 0) | (gating.top_two ? kTopTwo : 0);
  args.dtype = static_cast<int>(gating.rows.dtype);
  args.scale = gating.scale;
  // Two words per expert, a word of padding per 32 experts, and two words per group and per chosen expert.
  args.shared_words = 2 * args.experts + args.experts / 32 + 1 + 2 * (args.groups + args.k);
  void* arguments[] = {&args};
  for (int64_t begin = 0; begin < gating.rows.rows; begin += kLaunchRows) {
    args.rows = std::min(kLaunchRows, gating.rows.rows - begin);
    args.logits = logits.data() + begin * args.stride;
    args.weights = weights + begin * gating.k;
    args.indices = indices + begin * gating.k;
    // One-warp blocks start soonest. Many tokens share blocks, to launch fewer.
    const bool alone = args.rows <= 1024 || args.shared_words * 4 * kWarpsPerBlock > kGateSharedBytes;
    const int64_t warps = alone ? 1 : kWarpsPerBlock;
    const LaunchShape shape = {static_cast<uint32_t>((args.rows + warps - 1) / warps), 1, 32,
                               static_cast<uint32_t>(warps), static_cast<uint32_t>(args.shared_words * 4 * warps)};
    launch(kernels, gating.rows.device, entry::moe_gate, shape, arguments);
  }
}

// What a token, an expert of it and a chosen expert take one thread, for parallel_rows.
constexpr int64_t kTokenPs = 20'000, kExpertPs = 350, kChosenPs = 12'000;

void gate_cpu(const Gating& gating, const ReadRows& logits, const float* bias, float* weights, int32_t* indices) {
  const GateRows rows = {logits.data(),
                         bias,
                         weights,
                         indices,
                         logits.stride(),
                         gating.experts,
                         gating.k,
                         gating.groups,
                         gating.kept_groups,
                         gating.top_two,
                         gating.sigmoid,
                         gating.renormalize,
                         gating.scale,
                         static_cast<int>(gating.rows.dtype)};
  const GateFunction gate = PRECAST_AT_CPU_LEVEL(moe, gate);
  parallel_rows(gating.rows.rows, kTokenPs + gating.experts * kExpertPs + gating.k * kChosenPs,
                [&](int64_t begin, int64_t end) { gate(rows, begin, end); });
}

template <Gate gate>
TensorPair gating_op(const Tensor& logits, const Tensor* bias, int64_t k, int64_t groups, int64_t kept_groups,
                     bool top_two, bool sigmoid, bool renormalize, double scale) {
  constexpr const char* kOp = "topk_gating";
  Gating gating = {};
  gating.rows = check_logits(kOp, logits);
  gating.experts = gating.rows.hidden;
  gating.k = k;
  gating.groups = groups;
  gating.kept_groups = kept_groups;
  gating.top_two = top_two;
  gating.sigmoid = sigmoid;
  gating.renormalize = renormalize;
  gating.scale = static_cast<float>(scale);
  check_choice(kOp, gating);
  if (bias != nullptr) {
    PRECAST_CHECK(bias->dtype_code() == float32_code(), "%s: bias is %s; needed float32", kOp,
                  dtype_name(bias->dtype_code()));
    check_device(kOp, {"bias", *bias}, logits, "logits");
    PRECAST_CHECK(bias->dim() == 1 && bias->sizes()[0] == gating.experts,
                  "%s: bias has shape %s; needed (%lld,), a number for each expert", kOp, shape_of(*bias).text,
                  printable(gating.experts));
  }
  Tensor weights = empty_rows(logits, k, float32_code());
  Tensor indices = empty_rows(logits, k, aoti_torch_dtype_int32());
  if (gating.rows.rows > 0) {
    const ReadRows rows(logits), bias_row(bias);
    gate(gating, rows, reinterpret_cast<const float*>(bias_row.data()), static_cast<float*>(weights.mutable_data()),
         static_cast<int32_t*>(indices.mutable_data()));
  }
  return {std::move(weights), std::move(indices)};
}

using GateBackward = void (*)(const GateBackwardRows&, int64_t rows, int device);

void gate_backward_cuda(const GateBackwardRows& work, int64_t rows, int device) {
  GatingBackwardArgs args = {};
  const int64_t bytes = element_bytes(static_cast<DType>(work.dtype));
  args.stride = work.stride * bytes;
  args.experts = static_cast<int>(work.experts);
  args.k = static_cast<int>(work.k);
  args.flags = (work.sigmoid ? kSigmoid : 0) | (work.renormalize ? kRenormalize : 0);
  args.dtype = work.dtype;
  args.scale = work.scale;
  void* arguments[] = {&args};
  for (int64_t begin = 0; begin < rows; begin += kLaunchRows) {
    args.rows = std::min(kLaunchRows, rows - begin);
    args.grad = work.grad + begin * work.k;
    args.logits = static_cast<const char*>(work.logits) + begin * args.stride;
    args.indices = work.indices + begin * work.k;
    args.result = static_cast<char*>(work.result) + begin * work.experts * bytes;
    const LaunchShape shape = {static_cast<uint32_t>((args.rows + kWarpsPerBlock - 1) / kWarpsPerBlock), 1, 32,
                               static_cast<uint32_t>(kWarpsPerBlock), 0};
    launch(kernels, device, entry::moe_gate_backward, shape, arguments);
  }
}

void gate_backward_cpu(const GateBackwardRows& work, int64_t rows, int) {
  for (int64_t i = 0; i < rows * work.k; ++i) {
    PRECAST_CHECK(work.indices[i] >= 0 && work.indices[i] < work.experts,
                  "topk_gating_backward: topk_ids has the expert %d of %lld", work.indices[i], printable(work.experts));
  }
  const GateBackwardFunction backward = PRECAST_AT_CPU_LEVEL(moe, gate_backward);
  parallel_for(0, rows, grain_rows(work.experts * 4), [&](int64_t begin, int64_t end) { backward(work, begin, end); });
}

template <GateBackward backward>
Tensor gating_backward_op(const Tensor& grad, const Tensor& logits, const Tensor& topk_ids, bool sigmoid,
                          bool renormalize, double scale) {
  constexpr const char* kOp = "topk_gating_backward";
  const Norm rows = check_logits(kOp, logits);
  PRECAST_CHECK(topk_ids.dtype_code() == aoti_torch_dtype_int32(), "%s: topk_ids is %s; needed int32", kOp,
                dtype_name(topk_ids.dtype_code()));
  check_device(kOp, {"topk_ids", topk_ids}, logits, "logits");
  const int64_t last = logits.dim() - 1;
  PRECAST_CHECK(topk_ids.dim() == last + 1 && std::equal(logits.sizes(), logits.sizes() + last, topk_ids.sizes()) &&
                    topk_ids.sizes()[last] >= 1 && topk_ids.sizes()[last] <= rows.hidden,
                "%s: topk_ids has shape %s and logits %s; needed 1 to %lld experts for each row", kOp,
                shape_of(topk_ids).text, shape_of(logits).text, printable(rows.hidden));
  check_weights(kOp, {"grad", grad}, {"topk_ids", topk_ids});
  Tensor result = empty_contiguous_like(logits);
  if (rows.rows == 0) return result;
  const ReadRows logit_rows(logits);
  const Tensor grads = contiguous(grad), ids = contiguous(topk_ids);
  const GateBackwardRows work = {static_cast<const float*>(grads.data()),
                                 logit_rows.data(),
                                 static_cast<const int32_t*>(ids.data()),
                                 result.mutable_data(),
                                 logit_rows.stride(),
                                 rows.hidden,
                                 topk_ids.sizes()[last],
                                 sigmoid,
                                 renormalize,
                                 static_cast<float>(scale),
                                 static_cast<int>(rows.dtype)};
  backward(work, rows.rows, rows.device);
  return result;
}

// ---- places ----

constexpr int64_t kAlonePairs = 4096;     // sorted by a single block
constexpr int64_t kBlockPairs = 1024;     // per block, unless that makes more than kMostBlocks
constexpr int64_t kClusterPairs = 16384;  // sorted by a cluster
constexpr int64_t kMostBlocks = 128;

// Threads of the sorting kernels, which keep a count per warp and bucket: as many warps as shared memory allows and the
// chunk needs.
int64_t sort_threads(const SortArgs& args) {
  const int64_t warps = (kSharedBytes / 4 - 32) / (args.experts + 1) - 3, wanted = rounded(args.chunk, 32) / 32;
  return 32 * std::min<int64_t>(32, std::max<int64_t>(8, std::min(warps, wanted)));
}

void sort_cuda(SortArgs args, const Tensor& ids) {
  const int device = ids.device_index();
  const int64_t needed = (args.pairs + kBlockPairs - 1) / kBlockPairs;
  const bool cluster = needed > 1 && args.pairs <= kClusterPairs && has_clusters(kernels, device);
  const bool alone = cluster || args.pairs <= kAlonePairs;
  const int64_t blocks = cluster ? kMostSortBlocks : alone ? 1 : std::min(kMostBlocks, needed);
  args.chunk = static_cast<int>(rounded((args.pairs + blocks - 1) / blocks, 32));
  const int64_t buckets = args.experts + 1, threads = sort_threads(args);
  // A count per warp and bucket, the pairs of each bucket here and in all, its first slot, and a word per warp.
  const uint32_t shared = static_cast<uint32_t>(((threads / 32 + 3) * buckets + 32) * 4);
  const int64_t words = alone ? 1 : (blocks + 2) * buckets;
  const Tensor between = empty(&words, 1, aoti_torch_dtype_int32(), ids);
  void* arguments[] = {&args};
  LaunchShape shape = {static_cast<uint32_t>(blocks), 1, static_cast<uint32_t>(threads), 1, shared, true};
  if (cluster) shape.cluster = static_cast<uint32_t>(blocks);
  if (!alone) {
    args.counts = static_cast<int*>(between.mutable_data());
    args.totals = args.counts + blocks * buckets;
    args.starts = args.totals + buckets;
    launch(kernels, device, entry::moe_sort_count, shape, arguments);
    launch(kernels, device, entry::moe_sort_scan, {1, 1, 1024, 1, 0, true}, arguments);
  }
  launch(kernels, device, entry::moe_sort_place, shape, arguments);
}

using Sort = void (*)(SortArgs, const Tensor& ids);

template <Sort sort>
constexpr bool kOnCpu = sort == static_cast<Sort>(sort_cpu);

template <Sort sort>
TensorTriple align_op(const Tensor& topk_ids, int64_t experts, int64_t block_size) {
  constexpr const char* kOp = "moe_align_block_size";
  SortArgs args = check_ids(kOp, topk_ids, experts);
  PRECAST_CHECK(block_size >= 1 && block_size < kMostPairs, "%s: block_size is %lld; needed 1 or more", kOp,
                printable(block_size));
  const int64_t used = std::min<int64_t>(args.pairs, experts), slots = args.pairs + used * (block_size - 1);
  PRECAST_CHECK(slots < kMostPairs,
                "%s: %d pairs in blocks of %lld for %lld experts may need %lld slots; needed fewer than 2^31", kOp,
                args.pairs, printable(block_size), printable(experts), printable(slots));
  const Tensor ids = contiguous(topk_ids);
  args.ids = static_cast<const char*>(ids.data());
  if (kOnCpu<sort>) check_values(kOp, args);
  const int64_t blocks = (slots + block_size - 1) / block_size, one = 1;
  const int32_t int32 = aoti_torch_dtype_int32();
  Tensor sorted = empty(&slots, 1, int32, topk_ids), expert_of = empty(&blocks, 1, int32, topk_ids);
  Tensor total = empty(&one, 1, int32, topk_ids);
  args.sorted = static_cast<int*>(sorted.mutable_data());
  args.expert_of = static_cast<int*>(expert_of.mutable_data());
  args.total = static_cast<int*>(total.mutable_data());
  args.block_size = division_by(block_size);
  args.slots = static_cast<int>(slots);
  args.slot_blocks = static_cast<int>(blocks);
  sort(args, ids);
  return {std::move(sorted), std::move(expert_of), std::move(total)};
}

template <Sort sort>
TensorPair positions_op(const Tensor& topk_ids, int64_t experts) {
  constexpr const char* kOp = "moe_positions";
  SortArgs args = check_ids(kOp, topk_ids, experts);
  const Tensor ids = contiguous(topk_ids);
  args.ids = static_cast<const char*>(ids.data());
  if (kOnCpu<sort>) check_values(kOp, args);
  const int32_t int32 = aoti_torch_dtype_int32();
  Tensor positions = empty(topk_ids.sizes(), 2, int32, topk_ids), ends = empty(&experts, 1, int32, topk_ids);
  args.positions = static_cast<int*>(positions.mutable_data());
  args.ends = static_cast<int*>(ends.mutable_data());
  sort(args, ids);
  return {std::move(positions), std::move(ends)};
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("topk_gating", "CPU", gating_op<gate_cpu>),
    PRECAST_IMPLEMENTATION("topk_gating_backward", "CPU", gating_backward_op<gate_backward_cpu>),
    PRECAST_IMPLEMENTATION("moe_align_block_size", "CPU", align_op<sort_cpu>),
    PRECAST_IMPLEMENTATION("moe_positions", "CPU", positions_op<sort_cpu>),
    PRECAST_IMPLEMENTATION("topk_gating", "CUDA", gating_op<gate_cuda>),
    PRECAST_IMPLEMENTATION("topk_gating_backward", "CUDA", gating_backward_op<gate_backward_cuda>),
    PRECAST_IMPLEMENTATION("moe_align_block_size", "CUDA", align_op<sort_cuda>),
    PRECAST_IMPLEMENTATION("moe_positions", "CUDA", positions_op<sort_cuda>),
};
PRECAST_FAMILY(moe_routing, kImplementations, &kernels);

}  // namespace
}  // namespace precast::moe
