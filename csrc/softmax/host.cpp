// The forward ops of softmax: checks, allocation, and the choice of a kernel.
#include "../cpu/cpu_level.h"
#include "../gpu/row_policy.h"
#include "args.h"
#include "entries.h"
#include "rows.h"

namespace precast::softmax {
namespace {

// ---- which kernel serves which row ----
//
// H200, bf16, 8 x 32 x 2048 x 2048, share of the copy rate reached by a kernel of this form made for this shape:
//
//   masked, v4, T 64, one row per block                 0.963
//   causal, v8, one warp per row, one row per block     0.955
//
// A row stays in registers, with four vectors of 16 bytes per thread, or eight if four cannot hold it. Causal rows have
// their own kernels, which skip what they need not read. From 129 vectors on these have eight vectors per thread, so
// that one warp handles a row. Unaligned rows have a kernel of the same form. Wider rows use the `any` kernel, which
// reads them twice, the second time from the caches.
//
//   vectors in a row    kernel          threads per row          rows per block
//   1 to 32             v4              a fourth, at most 8 a half, as a power of two
//   1 to 128            v4, causal_v4   32                       4, from 65 on 2
//   129 to 2048         v4              a fourth                 1
//   2049 to 4096        v8              an eighth; float32: any  1
//   129 to 256          causal_v8       32                       1
//   257 to 4096         causal_v8       an eighth                1
//   unaligned, to 2048  shifted         a fourth, or 32          as v4, a part of a warp up to 64
//   2049 to 65536       wide            up to 8 x 1024           up to 8 blocks have a row, 16 if few; 9.0 on; no mask
//   4097 to 8192        walk            2 x 1024                 more rows than multiprocessors; float32: wide
//   more                any             up to 512                4 if one warp, else 1

PRECAST_ENTRIES(SOFTMAX_KERNELS)

KernelFamily kernels = {"softmax", kEntries, entry::kCount};

constexpr ByDType kV4 = PRECAST_BY_DTYPE(softmax, _v4), kCausalV4 = PRECAST_BY_DTYPE(softmax, _causal_v4),
                  kCausalV8 = PRECAST_BY_DTYPE(softmax, _causal_v8), kAny = PRECAST_BY_DTYPE(softmax, _any),
                  kShifted = PRECAST_BY_DTYPE(softmax, _shifted), kWide = PRECAST_BY_DTYPE(softmax, _wide);
constexpr ByDType kV8 = {kNoEntry, entry::softmax_f16_v8, entry::softmax_bf16_v8},
                  kWalk = {kNoEntry, entry::softmax_f16_walk, entry::softmax_bf16_walk};

constexpr uint32_t kCausalRow = kFirstOfFamily;
constexpr uint32_t kPlainRow = 2 * kFirstOfFamily;

// Two exponentials per element take half of the time of a row, so blocks are as large as they can be: 277 us with two
// blocks of 1024 threads at 2048 x 128256, 314 with four of 512. A single block per row is not worth a walk: 133 us
// instead of 144 at 4096 x 32768. Few rows take blocks that two of fit on a multiprocessor: on an H100, 32 x 151936
// takes 11.8 us with six blocks of 512 threads, 15.8 with four of 608; 2048 x 100352 takes 304 with 1024 threads, 312
// with 784. Three rows in shared memory hide what the exchange takes, but only between two blocks: on an H200, 4096 x
// 49152 takes 209 us instead of 228, 2048 x 100352 with four blocks 261 instead of 211.
constexpr ClusterForm kForm = {8, 1, 1024, 2, true}, kWalkForm = {4, 3, 1024, 2};

constexpr RowRule kRules[] = {
    {kUnaligned, 4 * 512, kShifted, Form::kRegisters, 4, 64},
    {kAligned | kCausalRow, 128, kCausalV4, Form::kRegisters, 4, 0},
    {kAligned | kCausalRow, 256, kCausalV8, Form::kOneWarp},
    {kAligned | kCausalRow, 8 * 512, kCausalV8, Form::kRegisters, 8},
    {kAligned, 4 * 512, kV4, Form::kRegisters, 4},
    {kAligned | kPlainRow | kClusters | kFewRows, 8 * 8 * 1024, kWide, Form::kCluster, 0, 0, kForm},
    {kAligned | kPlainRow | kClusters, 4 * 1024, kWide, Form::kCluster, 0, 0, kForm},
    {kAligned | kPlainRow | kClusters | kTwoBytes, 2 * 4 * 1024, kWalk, Form::kCluster, 0, 0, kWalkForm},
    {kAligned | kPlainRow | kClusters, 8 * 8 * 1024, kWide, Form::kCluster, 0, 0, kForm},
    {kAligned | kTwoBytes, 8 * 512, kV8, Form::kRegisters, 8},
    {0, 0, kAny, Form::kAnyRow},
};

// Heads that share a mask take turns if the mask is larger than what stays in the L2 cache while one head is processed.
// Otherwise the mask would be read from memory once per head.
constexpr int64_t kTile = 64, kTurnsFrom = int64_t{12} << 20;

uint32_t choose_tile(const Rows& rows, const ForwardRows& work, ByDType kernel) {
  if (work.mask.data == nullptr || work.mask.head != 0 || kernel == kAny || kernel == kShifted) return 0;
  if (work.heads < 2 || work.queries % kTile != 0 || rows.rows > kLaunchRows) return 0;
  return work.queries * rows.columns >= kTurnsFrom ? kTile : 0;
}

// ---- the two devices ----

void forward_cuda(const Rows& rows, const ForwardRows& work) {
  const int64_t bytes = rows.element_bytes(), row_bytes = rows.columns * bytes;
  ForwardArgs args;
  args.x_stride = work.x_stride * bytes;
  args.y_stride = row_bytes;
  args.mask_batch = work.mask.batch;
  args.mask_head = work.mask.head;
  args.mask_query = work.mask.query;
  uint64_t misaligned = misalignment(work.x, args.x_stride) | misalignment(work.y, row_bytes);
  if (work.mask.data != nullptr) {  // one byte per element of a vector: eight, or four
    const uint64_t mask = misalignment(work.mask.data, work.mask.batch | work.mask.head | work.mask.query);
    misaligned |= mask & static_cast<uint64_t>(16 / bytes - 1);
  }
  const bool alike = lies_alike({work.x, args.x_stride}, {work.y, row_bytes});
  const uint32_t has = (work.causal                 ? kCausalRow
                        : work.mask.data == nullptr ? kPlainRow
                                                    : 0) |
                       (bytes == 2 ? kTwoBytes : 0);
  RowKernel choice = choose_row(kRules, kernels,
                                {has, rows.rows, rows.columns, vectors_of(misaligned, row_bytes),
                                 alike ? shifted_vectors(row_bytes, bytes) : 0, rows.device});
  const int entry = choice.kernel[rows.dtype];
  widen_cluster(kernels, rows.device, entry, rows.rows, choice);
  args.mask = reinterpret_cast<const char*>(work.mask.data);
  args.columns = rows.columns;
  args.queries = work.queries;
  args.heads = work.heads;
  args.diagonal = work.diagonal;
  args.vectors = choice.vectors;
  args.scale = work.scale;
  args.masked_value = work.masked_value;
  args.causal = work.causal;
  args.uniform = work.uniform;
  args.peeled = misaligned != 0 && alike && work.mask.data == nullptr;
  args.tile = choose_tile(rows, work, choice.kernel);
  // Prefetching gains 1 to 3 % on an H200 if an op reads nothing else. It costs 1 % with a mask, and 10 % for causal
  // rows, of which only half is read.
  const bool prefetches =
      choice.kernel != kAny && choice.kernel != kShifted && choice.kernel != kWide && choice.kernel != kWalk;
  args.prefetch = work.mask.data == nullptr && prefetches ? rows_ahead(row_bytes) : 0;
  void* arguments[] = {&args};
  for_launches(rows.rows, choice, [&](int64_t begin, unsigned count, LaunchShape& shape) {
    if (choice.cluster > 1 || choice.kernel == kWalk) limit_clusters(kernels, rows.device, entry, shape);
    args.early = shape.early = starts_early(shape, rows.device);
    args.x = static_cast<const char*>(work.x) + begin * args.x_stride;
    args.y = static_cast<char*>(work.y) + begin * args.y_stride;
    args.first_row = begin;
    args.rows = count;
    launch(kernels, rows.device, entry, shape, arguments);
  });
}

constexpr int64_t kForwardPs = 400;  // an element, for parallel_rows

void forward_cpu(const Rows& rows, const ForwardRows& work) {
  const ForwardFunction forward = PRECAST_AT_CPU_LEVEL(softmax, forward);
  parallel_rows(rows.rows, rows.columns * kForwardPs, [&](int64_t begin, int64_t end) { forward(work, begin, end); });
}

// ---- the ops, the same for both devices ----

using Forward = void (*)(const Rows&, const ForwardRows&);

template <Forward forward>
Tensor compute(const Rows& rows, const Tensor& x, ForwardRows work) {
  Tensor y = empty_contiguous_like(x);
  const ReadRows x_rows(x);
  work.x = x_rows.data();
  work.x_stride = x_rows.stride();
  work.y = y.mutable_data();
  work.rows = rows.rows;
  work.columns = rows.columns;
  work.dtype = static_cast<int>(rows.dtype);
  forward(rows, work);
  return y;
}

template <Forward forward>
Tensor scaled_op(const Tensor& x, double scale) {
  const Rows rows = check_rows("scaled_softmax", "x", x, Shape::kAny);
  if (rows.rows == 0) return empty_contiguous_like(x);
  ForwardRows work = {};
  work.queries = work.heads = 1;
  work.scale = static_cast<float>(scale);
  return compute<forward>(rows, x, work);
}

template <Forward forward>
Tensor masked_op(const Tensor& x, const Tensor& mask, double scale, double masked_value, bool uniform) {
  const char* op = "scaled_masked_softmax";
  const Rows rows = check_rows(op, "x", x, Shape::kAny);
  check_mask(op, x, mask);
  PRECAST_CHECK(static_cast<float>(masked_value) < __builtin_inff(),
                "%s: masked_value is %g; needed a finite number or -inf", op, masked_value);
  if (rows.rows == 0) return empty_contiguous_like(x);
  const ReadMask mask_rows(mask);
  ForwardRows work = {};
  work.mask = mask_rows.rows();
  work.queries = rows.queries;
  work.heads = rows.heads;
  work.scale = static_cast<float>(scale);
  work.masked_value = static_cast<float>(masked_value);
  work.uniform = uniform;
  return compute<forward>(rows, x, work);
}

template <Forward forward>
Tensor causal(const char* op, const Tensor& x, double scale, Shape shape) {
  const Rows rows = check_rows(op, "x", x, shape);
  if (rows.rows == 0) return empty_contiguous_like(x);
  ForwardRows work = {};
  work.queries = rows.queries;
  work.heads = 1;
  work.diagonal = rows.columns - rows.queries;
  work.scale = static_cast<float>(scale);
  work.causal = true;
  return compute<forward>(rows, x, work);
}

template <Forward forward>
Tensor upper_triang_op(const Tensor& x, double scale) {
  return causal<forward>("scaled_upper_triang_masked_softmax", x, scale, Shape::kSquare);
}

template <Forward forward>
Tensor aligned_causal_op(const Tensor& x, double scale) {
  return causal<forward>("scaled_aligned_causal_softmax", x, scale, Shape::kQueries);
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("scaled_softmax", "CPU", scaled_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("scaled_masked_softmax", "CPU", masked_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("scaled_upper_triang_masked_softmax", "CPU", upper_triang_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("scaled_aligned_causal_softmax", "CPU", aligned_causal_op<forward_cpu>),
    PRECAST_IMPLEMENTATION("scaled_softmax", "CUDA", scaled_op<forward_cuda>),
    PRECAST_IMPLEMENTATION("scaled_masked_softmax", "CUDA", masked_op<forward_cuda>),
    PRECAST_IMPLEMENTATION("scaled_upper_triang_masked_softmax", "CUDA", upper_triang_op<forward_cuda>),
    PRECAST_IMPLEMENTATION("scaled_aligned_causal_softmax", "CUDA", aligned_causal_op<forward_cuda>),
};
PRECAST_FAMILY(softmax, kImplementations, &kernels);

}  // namespace
}  // namespace precast::softmax
