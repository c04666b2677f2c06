// Moves rows to experts and back: the ops, their CPU implementation, and the choice of kernels.
#include <algorithm>

#include "launches.h"
#include "sort.h"

namespace precast::moe {

KernelFamily kernels = {"moe", kEntries, entry::kCount};

namespace {

// ---- how the kernels are launched ----
//
//   permute            a row of threads per token; a thread loads its units once and stores them to all k slots
//   permute_few        the same for up to kFewPairs pairs, in the launch that sorts them: every block counts all pairs
//   combine_<dtype>    a row of threads per token; a thread sums 16-byte vectors of the token's rows
//   combine_few_*      the same for fewer tokens than multiprocessors: several blocks per token, a vector per thread
//   combine_any        the same, element by element
//   combine_backward_* a block per token, which reduces the dot products of grad with the token's rows
//   zero               clears a result of which not every row is written, and records an owner of each slot
//   repeat             sums the rows of slots that several pairs name

// ---- to the experts ----

struct Permute {
  Norm rows;
  Places places;
  const char* data;
  int64_t stride;  // in bytes
  char* result;
  const int32_t* positions;
  const Tensor& like;
};

void permute_rows_cuda(const Permute& call) {
  const int64_t row_bytes = call.rows.hidden * call.rows.element_bytes();
  if (call.places.tokens == 0) return;
  const int64_t unit = unit_of(misalignment(call.data, call.stride) | misalignment(call.result, row_bytes), row_bytes,
                               call.rows.element_bytes());
  PermuteArgs args = {};
  args.result = call.result;
  args.stride = call.stride;
  args.row_bytes = row_bytes;
  args.slots = call.places.slots;
  args.k = static_cast<int>(call.places.k);
  args.units = static_cast<unsigned>(row_bytes / unit);
  args.unit_bytes = static_cast<unsigned>(unit);
  args.whole = call.places.whole;
  // If each row is written once, half of the traffic is reads, which more threads and prefetching speed up. With
  // several slots per row, both only slow down the writes.
  const bool once = args.k == 1;
  args.prefetch = once && unit == 16 && row_bytes < (int64_t{1} << 31) ? rows_ahead(row_bytes) : 0;
  void* arguments[] = {&args};
  for_launches(call.places.tokens, rows_of_threads(args.units, once ? 2 : 4),
               [&](int64_t begin, unsigned count, LaunchShape& shape) {
                 share_rows(shape, call.rows.device, args.units);
                 args.rows = call.data + begin * call.stride;
                 args.positions = call.positions + begin * call.places.k;
                 args.tokens = count;
                 shape.early = true;
                 launch(kernels, call.rows.device, entry::moe_permute, shape, arguments);
               });
}

void permute_cuda(const char*, const Permute& call) {
  if (call.places.whole) return permute_rows_cuda(call);
  const AnyPairs any(call.like, call.rows, call.places, call.positions, call.result);
  any.zero();
  permute_rows_cuda(call);
  any.add_up(call.data, call.stride, nullptr);
}

void permute_cpu(const char* op, const Permute& call) {
  check_values(op, call.positions, call.places);
  const int64_t bytes = call.rows.element_bytes(), row_bytes = call.rows.hidden * bytes;
  Owners owners(call.positions, call.places);
  if (owners.repeated()) {
    const CombineRows rows = {call.data,
                              nullptr,
                              nullptr,
                              nullptr,
                              call.stride / bytes,
                              0,
                              call.rows.hidden,
                              0,
                              static_cast<int>(call.rows.dtype)};
    return owners.add_up(rows, call.result, row_bytes);
  }
  owners.clear_others(call.result, row_bytes);
  const int64_t k = call.places.k;
  parallel_for(0, call.places.tokens, grain_rows(call.rows.hidden * k), [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin * k; pair < end * k; ++pair) {
      const int64_t position = call.positions[pair];
      if (position < 0) continue;
      memcpy(call.result + position * row_bytes, call.data + pair / k * call.stride, static_cast<size_t>(row_bytes));
    }
  });
}

template <void (*permute)(const char*, const Permute&)>
Tensor permute_op(const Tensor& rows, const Tensor& positions, int64_t slots, bool whole) {
  constexpr const char* kOp = "moe_permute_rows";
  Permute call = {{}, {}, nullptr, 0, nullptr, nullptr, rows};
  call.rows = check_rows_of(kOp, {"rows", rows});
  check_width(kOp, call.rows);
  call.places = check_places(kOp, positions, {"rows", rows}, slots, whole);
  check_tokens(kOp, {"positions", positions}, {"rows", rows}, call.rows.rows);
  const int64_t sizes[] = {slots, call.rows.hidden};
  Tensor result = empty(sizes, 2, call.rows.dtype_code, rows);
  if (slots == 0 || call.rows.hidden == 0) return result;
  const ReadRows read(rows);
  const Tensor places = contiguous(positions);
  call.data = read.data();
  call.stride = read.stride() * call.rows.element_bytes();
  call.result = static_cast<char*>(result.mutable_data());
  call.positions = static_cast<const int32_t*>(places.data());
  permute(kOp, call);
  return result;
}

// ---- few pairs: places and rows together ----

// How many threads a multiprocessor has for blocks that each count all pairs: more of them, in blocks of fewer threads,
// would count longer than they hide.
constexpr int64_t kResidentThreads = 1024, kManyPairs = 4096;

struct PermuteFew {
  Norm rows;
  const char* data;
  int64_t stride;  // in bytes
  char* result;
  const Tensor& like;
};

void permute_few_cuda(const PermuteFew& call, SortArgs sort, const Tensor& ids) {
  const int64_t row_bytes = call.rows.hidden * call.rows.element_bytes();
  const int64_t unit = unit_of(misalignment(call.data, call.stride) | misalignment(call.result, row_bytes), row_bytes,
                               call.rows.element_bytes());
  PermuteFewArgs args = {};
  args.rows = call.data;
  args.result = call.result;
  args.ids = sort.ids;
  args.positions = sort.positions;
  args.ends = sort.ends;
  args.stride = call.stride;
  args.row_bytes = row_bytes;
  args.k = sort.pairs > 0 ? static_cast<int>(ids.sizes()[1]) : 0;
  args.pairs = sort.pairs;
  args.experts = sort.experts;
  args.id_bytes = sort.id_bytes;
  args.units = sort.pairs > 0 ? static_cast<unsigned>(row_bytes / unit) : 0;
  args.unit_bytes = static_cast<unsigned>(unit);
  const int64_t threads = sort.pairs > kManyPairs ? kCountingThreads : kSharedThreads;
  const int64_t most = kResidentThreads / threads * multiprocessors(call.rows.device);
  const int64_t together = std::min<int64_t>((call.rows.rows + most - 1) / most, kMostExperts / std::max(args.k, 1));
  args.together = static_cast<int>(std::max<int64_t>(together, 1));
  const int64_t blocks = (call.rows.rows + args.together - 1) / args.together;
  const int64_t parts = threads == kSharedThreads ? parts_of_row(call.rows.device, blocks, args.units) : 1;
  void* arguments[] = {&args};
  LaunchShape shape = {static_cast<uint32_t>(std::max<int64_t>(blocks, 1)), static_cast<uint32_t>(parts),
                       static_cast<uint32_t>(threads)};
  args.early = shape.early = starts_early(shape, call.rows.device);
  launch(kernels, call.rows.device, entry::moe_permute_few, shape, arguments);
}

void permute_few_cpu(const PermuteFew& call, SortArgs sort, const Tensor& ids) {
  check_values("moe_permute_few", sort);
  sort_cpu(sort, ids);
  const int64_t tokens = call.rows.rows, k = ids.sizes()[1];
  permute_cpu(
      "moe_permute_few",
      {call.rows, {tokens, k, tokens * k, true}, call.data, call.stride, call.result, sort.positions, call.like});
}

template <void (*permute)(const PermuteFew&, SortArgs, const Tensor& ids)>
TensorTriple permute_few_op(const Tensor& rows, const Tensor& topk_ids, int64_t experts) {
  constexpr const char* kOp = "moe_permute_few";
  PermuteFew call = {{}, nullptr, 0, nullptr, rows};
  call.rows = check_rows_of(kOp, {"rows", rows});
  check_width(kOp, call.rows);
  SortArgs sort = check_ids(kOp, topk_ids, experts);
  check_device(kOp, {"topk_ids", topk_ids}, rows, "rows");
  PRECAST_CHECK(sort.pairs <= kFewPairs && topk_ids.sizes()[1] >= 1,
                "%s: topk_ids has shape %s; needed 1 or more for a token, %d in all", kOp, shape_of(topk_ids).text,
                kFewPairs);
  check_tokens(kOp, {"topk_ids", topk_ids}, {"rows", rows}, call.rows.rows);
  const Tensor ids = contiguous(topk_ids);
  const int64_t sizes[] = {sort.pairs, call.rows.hidden};
  const int32_t int32 = aoti_torch_dtype_int32();
  Tensor result = empty(sizes, 2, call.rows.dtype_code, rows);
  Tensor positions = empty(topk_ids.sizes(), 2, int32, topk_ids), ends = empty(&experts, 1, int32, topk_ids);
  const ReadRows read(rows);
  call.data = read.data();
  call.stride = read.stride() * call.rows.element_bytes();
  call.result = static_cast<char*>(result.mutable_data());
  sort.ids = static_cast<const char*>(ids.data());
  sort.positions = static_cast<int*>(positions.mutable_data());
  sort.ends = static_cast<int*>(ends.mutable_data());
  permute(call, sort, ids);
  return {std::move(result), std::move(positions), std::move(ends)};
}

// ---- back ----

struct Combine {
  Norm rows;
  Places places;
  CombineRows work;
};

void combine_cuda(const char*, const Combine& call) {
  const CombineRows& work = call.work;
  const int64_t bytes = call.rows.element_bytes(), row_bytes = work.width * bytes;
  CombineArgs args = {};
  args.rows = static_cast<const char*>(work.rows);
  args.stride = work.stride * bytes;
  args.row_bytes = row_bytes;
  args.slots = work.slots;
  args.k = static_cast<int>(work.k);
  const int64_t vectors =
      vectors_of(misalignment(work.rows, args.stride) | misalignment(work.result, row_bytes), row_bytes);
  args.units = static_cast<unsigned>(vectors > 0 ? vectors : work.width);
  args.dtype = static_cast<int>(call.rows.dtype);
  args.prefetch = args.k == 1 && vectors > 0 && row_bytes < (int64_t{1} << 31) ? rows_ahead(row_bytes) : 0;
  // A thread loads one row after the other. With few tokens no other threads hide that latency, so all loads start at
  // once.
  constexpr int64_t kFewThreads = 64;
  const bool fewer = call.places.tokens < multiprocessors(call.rows.device);
  const bool few = fewer && work.k > 1 && vectors > 0 && vectors <= 65535 * kFewThreads;
  const ByDType kernel = few           ? PRECAST_BY_DTYPE(moe_combine_few, )
                         : vectors > 0 ? PRECAST_BY_DTYPE(moe_combine, )
                                       : ByDType(entry::moe_combine_any);
  void* arguments[] = {&args};
  for_launches(call.places.tokens, rows_of_threads(args.units), [&](int64_t begin, unsigned count, LaunchShape& shape) {
    if (few) {
      shape.blocks_x = count;
      shape.blocks_y = static_cast<uint32_t>((vectors + kFewThreads - 1) / kFewThreads);
      shape.threads_x = kFewThreads;
      shape.threads_y = 1;
    } else if (vectors > 0) {
      share_rows(shape, call.rows.device, args.units);
    }
    args.result = static_cast<char*>(work.result) + begin * row_bytes;
    args.positions = work.positions + begin * work.k;
    args.weights = work.weights == nullptr ? nullptr : work.weights + begin * work.k;
    args.tokens = count;
    args.early = shape.early = vectors > 0 && starts_early(shape, call.rows.device);
    launch(kernels, call.rows.device, kernel[call.rows.dtype], shape, arguments);
  });
}

void combine_cpu(const char* op, const Combine& call) {
  check_values(op, call.work.positions, call.places);
  const CombineFunction combine = PRECAST_AT_CPU_LEVEL(moe, combine);
  parallel_for(0, call.places.tokens, grain_rows(call.work.width * call.work.k),
               [&](int64_t begin, int64_t end) { combine(call.work, begin, end); });
}

template <void (*combine)(const char*, const Combine&)>
Tensor combine_op(const Tensor& rows, const Tensor& positions, const Tensor* weights, bool whole) {
  constexpr const char* kOp = "moe_combine_rows";
  Combine call = {};
  call.rows = check_rows_of(kOp, {"rows", rows});
  check_width(kOp, call.rows);
  call.places = check_places(kOp, positions, {"rows", rows}, call.rows.rows, whole);
  if (weights != nullptr) check_weights(kOp, {"weights", *weights}, {"positions", positions});
  const int64_t sizes[] = {call.places.tokens, call.rows.hidden};
  Tensor result = empty(sizes, 2, call.rows.dtype_code, rows);
  if (call.places.tokens == 0 || call.rows.hidden == 0) return result;
  const ReadRows read(rows);
  const Tensor places = contiguous(positions), factors = contiguous(weights != nullptr ? *weights : positions);
  call.work = {read.data(),
               result.mutable_data(),
               static_cast<const int32_t*>(places.data()),
               weights == nullptr ? nullptr : static_cast<const float*>(factors.data()),
               read.stride(),
               call.places.slots,
               call.rows.hidden,
               call.places.k,
               static_cast<int>(call.rows.dtype)};
  combine(kOp, call);
  return result;
}

// ---- gradients of the way back ----

struct Backward {
  Norm rows;
  Places places;
  CombineBackwardRows work;
  const Tensor& like;
};

void backward_rows_cuda(const Backward& call) {
  const CombineBackwardRows& work = call.work;
  const int64_t bytes = call.rows.element_bytes(), row_bytes = work.width * bytes;
  if (call.places.tokens == 0) return;
  CombineBackwardArgs args = {};
  args.rows = static_cast<const char*>(work.rows);
  args.grad_rows = static_cast<char*>(work.grad_rows);
  args.grad_stride = work.grad_stride * bytes;
  args.stride = work.stride * bytes;
  args.row_bytes = row_bytes;
  args.slots = work.slots;
  args.k = static_cast<int>(work.k);
  args.whole = call.places.whole;
  const int64_t vectors = vectors_of(misalignment(work.rows, args.stride) | misalignment(work.grad, args.grad_stride) |
                                         misalignment(work.grad_rows, row_bytes),
                                     row_bytes);
  args.units = static_cast<unsigned>(vectors > 0 ? vectors : work.width);
  args.dtype = static_cast<int>(call.rows.dtype);
  const ByDType kernel =
      vectors > 0 ? PRECAST_BY_DTYPE(moe_combine_backward, ) : ByDType(entry::moe_combine_backward_any);
  void* arguments[] = {&args};
  RowKernel chosen = rows_of_threads(args.units);
  chosen.rows = 1;
  for_launches(call.places.tokens, chosen, [&](int64_t begin, unsigned count, const LaunchShape& shape) {
    args.grad = static_cast<const char*>(work.grad) + begin * args.grad_stride;
    args.positions = work.positions + begin * work.k;
    args.weights = work.weights + begin * work.k;
    args.grad_weights = work.grad_weights + begin * work.k;
    args.tokens = count;
    launch(kernels, call.rows.device, kernel[call.rows.dtype], shape, arguments);
  });
}

void backward_cuda(const char*, const Backward& call) {
  if (call.places.whole) return backward_rows_cuda(call);
  const CombineBackwardRows& work = call.work;
  const AnyPairs any(call.like, call.rows, call.places, work.positions, static_cast<char*>(work.grad_rows));
  any.zero();
  backward_rows_cuda(call);
  any.add_up(work.grad, work.grad_stride * call.rows.element_bytes(), work.weights);
}

void backward_cpu(const char* op, const Backward& call) {
  check_values(op, call.work.positions, call.places);
  const int64_t row_bytes = call.work.width * call.rows.element_bytes();
  char* grad_rows = static_cast<char*>(call.work.grad_rows);
  Owners owners(call.work.positions, call.places);
  const CombineBackwardFunction backward = PRECAST_AT_CPU_LEVEL(moe, combine_backward);
  if (owners.repeated()) {
    backward(call.work, 0, call.places.tokens);  // on one thread, because several pairs write one row
    const CombineRows rows = {call.work.grad,  nullptr, nullptr,        call.work.weights, call.work.grad_stride, 0,
                              call.work.width, 0,       call.work.dtype};
    return owners.add_up(rows, grad_rows, row_bytes);
  }
  owners.clear_others(grad_rows, row_bytes);
  parallel_for(0, call.places.tokens, grain_rows(call.work.width * call.work.k),
               [&](int64_t begin, int64_t end) { backward(call.work, begin, end); });
}

template <void (*backward)(const char*, const Backward&)>
TensorPair backward_op(const Tensor& grad, const Tensor& rows, const Tensor& positions, const Tensor& weights,
                       bool whole) {
  constexpr const char* kOp = "moe_combine_rows_backward";
  Backward call = {{}, {}, {}, rows};
  call.rows = check_rows_of(kOp, {"rows", rows});
  check_width(kOp, call.rows);
  call.places = check_places(kOp, positions, {"rows", rows}, call.rows.rows, whole);
  check_weights(kOp, {"weights", weights}, {"positions", positions});
  check_kind(kOp, {"grad", grad}, rows, "rows");
  PRECAST_CHECK(grad.dim() == 2 && grad.sizes()[0] == call.places.tokens && grad.sizes()[1] == call.rows.hidden,
                "%s: grad has shape %s; needed (%lld, %lld), a row for each token", kOp, shape_of(grad).text,
                printable(call.places.tokens), printable(call.rows.hidden));
  Tensor grad_rows = empty_contiguous_like(rows), grad_weights = empty_contiguous_like(weights);
  if (call.rows.rows == 0 && call.places.tokens == 0) return {std::move(grad_rows), std::move(grad_weights)};
  const ReadRows read(rows), read_grad(grad);
  const Tensor places = contiguous(positions), factors = contiguous(weights);
  call.work = {read_grad.data(),
               read.data(),
               grad_rows.mutable_data(),
               static_cast<float*>(grad_weights.mutable_data()),
               static_cast<const int32_t*>(places.data()),
               static_cast<const float*>(factors.data()),
               read_grad.stride(),
               read.stride(),
               call.places.slots,
               call.rows.hidden,
               call.places.k,
               static_cast<int>(call.rows.dtype)};
  backward(kOp, call);
  return {std::move(grad_rows), std::move(grad_weights)};
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("moe_permute_few", "CPU", permute_few_op<permute_few_cpu>),
    PRECAST_IMPLEMENTATION("moe_permute_few", "CUDA", permute_few_op<permute_few_cuda>),
    PRECAST_IMPLEMENTATION("moe_permute_rows", "CPU", permute_op<permute_cpu>),
    PRECAST_IMPLEMENTATION("moe_combine_rows", "CPU", combine_op<combine_cpu>),
    PRECAST_IMPLEMENTATION("moe_combine_rows_backward", "CPU", backward_op<backward_cpu>),
    PRECAST_IMPLEMENTATION("moe_permute_rows", "CUDA", permute_op<permute_cuda>),
    PRECAST_IMPLEMENTATION("moe_combine_rows", "CUDA", combine_op<combine_cuda>),
    PRECAST_IMPLEMENTATION("moe_combine_rows_backward", "CUDA", backward_op<backward_cuda>),
};
PRECAST_FAMILY(moe, kImplementations, &kernels);

}  // namespace
}  // namespace precast::moe
