// The movement of rows to experts and back: checks, the CPU implementation, and the choice of kernels.
#include <algorithm>

#include "../common/cpu_level.h"
#include "../common/lists.h"
#include "../common/row_launch.h"
#include "check.h"
#include "cpu.h"
#include "sort.h"

namespace precast::moe {
namespace {

// ---- how the kernels are launched ----
//
//   permute            threads for a token; each loads units of its row once and stores them at all of its places
//   permute_few        the same and the places, for up to kFewPairs pairs: blocks for a token, of which each sorts all
//   combine_<dtype>    threads for a token; each adds up vectors of 16 bytes of its rows
//   combine_few_*      the same for fewer tokens than multiprocessors: blocks for a token, a vector for a thread
//   combine_any        the same, element by element
//   combine_backward_* a block for a token, which has the products with all of its rows to add up
//   zero               memory that not every row of is written by permute or combine_backward; finds slots' owners
//   repeat             the rows of slots that several pairs of a token and a place have

constexpr Entry kEntries[] = {
    {"moe_permute"},
    {"moe_zero"},
    {"moe_combine_f32"},
    {"moe_combine_f16"},
    {"moe_combine_bf16"},
    {"moe_combine_any"},
    {"moe_combine_backward_f32"},
    {"moe_combine_backward_f16"},
    {"moe_combine_backward_bf16"},
    {"moe_combine_backward_any"},
    {"moe_repeat"},
    {"moe_permute_few"},
    {"moe_combine_few_f32"},
    {"moe_combine_few_f16"},
    {"moe_combine_few_bf16"},
};
constexpr int kEntryCount = sizeof(kEntries) / sizeof(kEntries[0]);
enum Kernel : int {
  kPermute = 0,
  kZero = 1,
  kCombine = 2,
  kCombineAny = 5,
  kBackward = 6,
  kBackwardAny = 9,
  kRepeat = 10,
  kPermuteFew = 11,
  kCombineFew = 12
};

KernelFamily kernels = {"moe", kEntries, kEntryCount};

// ---- checks ----

struct Places {
  int64_t tokens, k, slots;
  bool whole;
};

Places check_places(const char* op, const Tensor& positions, const Named& like, int64_t slots, bool whole) {
  PRECAST_CHECK(positions.dtype_code() == aoti_torch_dtype_int32(), "%s: positions is %s; needed int32", op,
                dtype_name(positions.dtype_code()));
  check_device(op, {"positions", positions}, like.tensor, like.name);
  PRECAST_CHECK(positions.dim() == 2 && positions.sizes()[1] >= 1,
                "%s: positions has shape %s; needed (tokens, k) with k of 1 or more", op, shape_of(positions).text);
  const Places places = {positions.sizes()[0], positions.sizes()[1], slots, whole};
  PRECAST_CHECK(slots >= 0 && slots < kMostPairs, "%s: %lld slots; needed 0 to 2^31 - 1", op, printable(slots));
  PRECAST_CHECK(positions.numel() < kMostPairs, "%s: positions has shape %s; needed fewer than 2^31 elements", op,
                shape_of(positions).text);
  PRECAST_CHECK(!whole || positions.numel() == slots,
                "%s: positions has shape %s and there are %lld slots; needed one position for each slot", op,
                shape_of(positions).text, printable(slots));
  return places;
}

void check_tokens(const char* op, const Named& places, const Named& rows, int64_t tokens) {
  PRECAST_CHECK(places.tensor.sizes()[0] == tokens, "%s: %s has shape %s and %s %s; needed as many rows", op,
                places.name, shape_of(places.tensor).text, rows.name, shape_of(rows.tensor).text);
}

// On the CPU, a position that does not exist is refused before anything is written.
void check_values(const char* op, const int32_t* positions, const Places& places) {
  for (int64_t pair = 0; pair < places.tokens * places.k; ++pair) {
    const int64_t slot = positions[pair] < 0 ? (places.whole ? ~positions[pair] : 0) : positions[pair];
    PRECAST_CHECK(slot < places.slots || (positions[pair] < 0 && !places.whole),
                  "%s: positions has %d and there are %lld slots; needed one of these, or a negative number", op,
                  positions[pair], printable(places.slots));
  }
}

// ---- the pairs of each slot, on the CPU ----

// A position may be any number, so a slot has any number of pairs of a token and a place.
class Owners {
 public:
  Owners(const int32_t* positions, const Places& places) : places_(places), positions_(positions), ends_(places.slots) {
    std::fill(ends_.data(), ends_.data() + places.slots, 0);
    for (int64_t pair = 0; pair < places.tokens * places.k; ++pair) {
      if (positions[pair] >= 0 && ++ends_[positions[pair]] > 1) repeated_ = true;
    }
  }

  // True if a slot has several pairs, so that what they give to its row must be added up.
  bool repeated() const { return repeated_; }

  // Makes the rows without a pair zero. Call it before add_up().
  void clear_others(char* result, int64_t row_bytes) const {
    for (int64_t slot = 0; slot < places_.slots; ++slot) {
      if (ends_[slot] == 0) memset(result + slot * row_bytes, 0, static_cast<size_t>(row_bytes));
    }
  }

  // Makes each row of `result` the sum of its pairs' rows, in their order, times their weights. `rows` has one for each
  // token.
  void add_up(const CombineRows& rows, char* result, int64_t row_bytes) {
    const int64_t pairs = places_.tokens * places_.k;
    Array<int32_t> tokens(pairs);
    Array<float> factors(pairs);
    for (int64_t slot = 1; slot < places_.slots; ++slot) ends_[slot] += ends_[slot - 1];
    for (int64_t pair = pairs - 1; pair >= 0; --pair) {
      if (positions_[pair] < 0) continue;
      const int32_t at = --ends_[positions_[pair]];  // becomes the beginning of the slot's pairs
      tokens[at] = static_cast<int32_t>(pair / places_.k);
      factors[at] = rows.weights == nullptr ? 1.0f : rows.weights[pair];
    }
    int64_t all = 0;
    for (int64_t pair = 0; pair < pairs; ++pair) all += positions_[pair] >= 0;
    const CombineFunction combine = PRECAST_AT_CPU_LEVEL(moe, combine);
    parallel_for(0, places_.slots, grain_rows(rows.width), [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        CombineRows one = rows;
        one.result = result + slot * row_bytes;
        one.positions = tokens.data() + ends_[slot];
        one.weights = factors.data() + ends_[slot];
        one.slots = places_.tokens;
        one.k = (slot + 1 < places_.slots ? ends_[slot + 1] : all) - ends_[slot];
        combine(one, 0, 1);
      }
    });
  }

 private:
  const Places places_;
  const int32_t* positions_;
  Array<int32_t> ends_;  // at first, how many pairs each slot has
  bool repeated_ = false;
};

// ---- launches ----

int64_t unit_of(uint64_t misaligned, int64_t row_bytes, int64_t element_bytes) {
  const uint64_t bits = misaligned | static_cast<uint64_t>(row_bytes);
  return (bits & 15) == 0 ? 16 : (bits & 3) == 0 ? 4 : element_bytes;
}

// Threads for a row of `units` that has `each` of them per thread, and rows in a block.
RowKernel rows_of_threads(int kernel, int64_t units, int64_t each = 2) {
  const int64_t threads = std::min<int64_t>(kRowThreads, warps_for((std::max<int64_t>(units, 1) + each - 1) / each));
  return {kernel, static_cast<uint32_t>(threads), static_cast<uint32_t>(threads < 128 ? 128 / threads : 1), 0};
}

// The blocks of 128 threads that share a row of `units` if there are this many rows: about two for each multiprocessor.
constexpr int64_t kSharedThreads = 128;

int64_t parts_of_row(int device, int64_t rows, int64_t units) {
  const int64_t most = std::max<int64_t>(2 * multiprocessors(device) / std::max<int64_t>(rows, 1), 1);
  return std::min(std::max<int64_t>((units + kSharedThreads - 1) / kSharedThreads, 1), most);
}

// Makes a launch that leaves half of the multiprocessors without a block one of more and smaller blocks.
void share_rows(LaunchShape& shape, int device, int64_t units) {
  if (shape.threads_y > 1 || 2 * int64_t{shape.blocks_x} > multiprocessors(device)) return;
  shape.threads_x = kSharedThreads;
  shape.blocks_y = static_cast<uint32_t>(parts_of_row(device, shape.blocks_x, units));
}

// Rows of slots that any number of pairs may have: zero() before they are written, add_up() afterwards.
class AnyPairs {
 public:
  AnyPairs(const Tensor& like, const Norm& rows, const Places& places, const int32_t* positions, char* result)
      : rows_(rows),
        places_(places),
        positions_(positions),
        result_(result),
        row_bytes_(rows.hidden * rows.element_bytes()),
        owners_(empty(&places.slots, 1, aoti_torch_dtype_int32(), like)) {}

  void zero() const {
    const int64_t bytes = places_.slots * row_bytes_, pairs = places_.tokens * places_.k;
    if (bytes == 0) return;
    ZeroArgs args = {result_, bytes, positions_, static_cast<int*>(owners_.mutable_data()), places_.slots, pairs};
    void* arguments[] = {&args};
    const int64_t blocks = std::min<int64_t>((bytes + 4095) / 4096, int64_t{1} << 20);
    launch(kernels, rows_.device, kZero, {static_cast<uint32_t>(blocks), 1, 256, 1, 0}, arguments);
  }

  // `rows`: of the tokens, `stride` bytes apart.
  void add_up(const void* rows, int64_t stride, const float* weights) const {
    const int64_t pairs = places_.tokens * places_.k;
    if (places_.slots * row_bytes_ == 0 || pairs < 2) return;
    RepeatArgs args = {};
    args.rows = static_cast<const char*>(rows);
    args.result = result_;
    args.positions = positions_;
    args.weights = weights;
    args.owners = static_cast<const int*>(owners_.data());
    args.stride = stride;
    args.row_bytes = row_bytes_;
    args.slots = places_.slots;
    args.tokens = static_cast<unsigned>(places_.tokens);
    args.k = static_cast<int>(places_.k);
    args.width = static_cast<unsigned>(rows_.hidden);
    args.dtype = static_cast<int>(rows_.dtype);
    void* arguments[] = {&args};
    const int64_t blocks = (pairs + kRepeatThreads - 1) / kRepeatThreads;
    launch(kernels, rows_.device, kRepeat, {static_cast<uint32_t>(blocks), 1, kRepeatThreads, 1, 0}, arguments);
  }

 private:
  const Norm& rows_;
  const Places& places_;
  const int32_t* positions_;
  char* result_;
  int64_t row_bytes_;
  const Tensor owners_;
};

constexpr int64_t kMostUnits = int64_t{1} << 31;

void check_width(const char* op, const Norm& rows) {
  PRECAST_CHECK(rows.hidden < kMostUnits, "%s: rows of %lld elements; needed fewer than 2^31", op,
                printable(rows.hidden));
}

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
  // If each row is written once, half of the memory's time is reading, and it gains from more threads and from rows on
  // their way ahead. With more places, both only disturb the writes.
  const bool once = args.k == 1;
  args.prefetch = once && unit == 16 && row_bytes < (int64_t{1} << 31) ? rows_ahead(row_bytes) : 0;
  void* arguments[] = {&args};
  for_launches(call.places.tokens, rows_of_threads(kPermute, args.units, once ? 2 : 4),
               [&](int64_t begin, unsigned count, LaunchShape& shape) {
                 share_rows(shape, call.rows.device, args.units);
                 args.rows = call.data + begin * call.stride;
                 args.positions = call.positions + begin * call.places.k;
                 args.tokens = count;
                 launch(kernels, call.rows.device, kPermute, shape, arguments);
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

// ---- few tokens: places and rows together ----

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
  const uint32_t parts = static_cast<uint32_t>(parts_of_row(call.rows.device, call.rows.rows, args.units));
  void* arguments[] = {&args};
  launch(kernels, call.rows.device, kPermuteFew,
         {static_cast<uint32_t>(std::max<int64_t>(call.rows.rows, 1)), parts, kSharedThreads, 1, 0}, arguments);
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
  // A thread's loads of rows wait for each other unless there are few tokens, and then there are no others to wait for.
  constexpr int64_t kFewThreads = 64;
  const bool fewer = call.places.tokens < multiprocessors(call.rows.device);
  const bool few = fewer && work.k > 1 && vectors > 0 && vectors <= 65535 * kFewThreads;
  const int kernel = few ? kCombineFew + args.dtype : vectors > 0 ? kCombine + args.dtype : kCombineAny;
  void* arguments[] = {&args};
  for_launches(call.places.tokens, rows_of_threads(kernel, args.units),
               [&](int64_t begin, unsigned count, LaunchShape& shape) {
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
                 launch(kernels, call.rows.device, kernel, shape, arguments);
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
  const int kernel = vectors > 0 ? kBackward + args.dtype : kBackwardAny;
  void* arguments[] = {&args};
  RowKernel chosen = rows_of_threads(kernel, args.units);
  chosen.rows = 1;
  for_launches(call.places.tokens, chosen, [&](int64_t begin, unsigned count, const LaunchShape& shape) {
    args.grad = static_cast<const char*>(work.grad) + begin * args.grad_stride;
    args.positions = work.positions + begin * work.k;
    args.weights = work.weights + begin * work.k;
    args.grad_weights = work.grad_weights + begin * work.k;
    args.tokens = count;
    launch(kernels, call.rows.device, kernel, shape, arguments);
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
    backward(call.work, 0, call.places.tokens);  // on one thread, because pairs write the same rows
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
