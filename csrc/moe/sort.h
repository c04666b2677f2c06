// The sort of pairs by expert, for both families: its checks, and the CPU implementation.
#pragma once

#include <algorithm>

#include "../host/lists.h"
#include "check.h"

namespace precast::moe {

inline int64_t rounded(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }

inline int64_t id_at(const SortArgs& args, int64_t pair) {
  if (args.id_bytes == 8) return reinterpret_cast<const int64_t*>(args.ids)[pair];
  return reinterpret_cast<const int32_t*>(args.ids)[pair];
}

inline void sort_cpu(SortArgs args, const Tensor&) {
  const int64_t experts = args.experts, size = args.block_size.divisor;
  Array<int64_t> next(experts + 1);
  std::fill(next.data(), next.data() + experts + 1, 0);
  const auto bucket = [&](int64_t pair) {
    const int64_t id = id_at(args, pair);
    return id < 0 ? experts : id;
  };
  for (int64_t pair = 0; pair < args.pairs; ++pair) ++next[bucket(pair)];
  int64_t start = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const int64_t end = start + rounded(next[expert], size);
    if (args.expert_of != nullptr) std::fill(args.expert_of + start / size, args.expert_of + end / size, expert);
    if (args.ends != nullptr) args.ends[expert] = static_cast<int>(end);
    next[expert] = start;
    start = end;
  }
  next[experts] = start;
  if (args.total != nullptr) *args.total = static_cast<int>(start);
  if (args.expert_of != nullptr) std::fill(args.expert_of + start / size, args.expert_of + args.slot_blocks, 0);
  if (args.sorted != nullptr) std::fill(args.sorted, args.sorted + args.slots, args.pairs);
  for (int64_t pair = 0; pair < args.pairs; ++pair) {
    const int64_t expert = bucket(pair), slot = next[expert]++;
    if (args.sorted != nullptr && expert < experts) args.sorted[slot] = static_cast<int>(pair);
    if (args.positions != nullptr) args.positions[pair] = static_cast<int>(expert < experts ? slot : ~slot);
  }
}

inline SortArgs check_ids(const char* op, const Tensor& ids, int64_t experts) {
  SortArgs args = {};
  args.id_bytes = id_bytes(ids);
  PRECAST_CHECK(args.id_bytes != 0, "%s: topk_ids is %s; needed int32 or int64", op, dtype_name(ids.dtype_code()));
  PRECAST_CHECK(ids.dim() == 2, "%s: topk_ids has shape %s; needed (tokens, k)", op, shape_of(ids).text);
  PRECAST_CHECK(experts >= 1 && experts <= kMostExperts, "%s: experts is %lld; needed 1 to %d", op, printable(experts),
                kMostExperts);
  const int64_t pairs = ids.numel();
  PRECAST_CHECK(pairs < kMostPairs, "%s: topk_ids has shape %s; needed fewer than 2^31 elements", op,
                shape_of(ids).text);
  args.pairs = static_cast<int>(pairs);
  args.experts = static_cast<int>(experts);
  args.block_size = division_by(1);
  return args;
}

// The CPU kernels refuse an expert that does not exist before they write anything.
inline void check_values(const char* op, const SortArgs& args) {
  for (int64_t pair = 0; pair < args.pairs; ++pair) {
    PRECAST_CHECK(id_at(args, pair) < args.experts,
                  "%s: topk_ids has the expert %lld of %d; needed one of these, or a negative number to leave it out",
                  op, printable(id_at(args, pair)), args.experts);
  }
}

}  // namespace precast::moe
