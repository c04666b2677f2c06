// The choice of a kernel as data: each op has a table of rules, and the first rule that fits a call decides. A rule
// depends on the width of a row, its alignment, the number of rows, and on what the GPU can do, and never on
// measurements at run time. `python -m tools tune` measures the configurations of a GPU;
// LAUNCH.md says why each breakpoint is where it is.
#pragma once

#include <stdint.h>

#include "row_launch.h"

namespace precast {

// How the threads of a kernel divide a row.
enum class Form : uint8_t {
  kRegisters,  // a part of a warp, a warp or a block holds a row, with `each` vectors per thread
  kSpread,     // the same, with as many threads as a block has: for few rows
  kOneWarp,    // a block of one warp
  kCluster,    // a cluster of blocks holds a row
  kAnyRow,     // any row, read more than once
};

// What a call must be for a rule; families add their own from kFirstOfFamily on.
constexpr uint32_t kAligned = 1;    // everything lies at multiples of 16 bytes
constexpr uint32_t kUnaligned = 2;  // not so, but all tensors are off by the same number of bytes
constexpr uint32_t kClusters = 4;   // the GPU has clusters
constexpr uint32_t kFewRows = 8;    // no more rows than multiprocessors
constexpr uint32_t kTwoBytes = 16;  // elements of two bytes
constexpr uint32_t kFirstOfFamily = 32;

struct RowRule {
  uint32_t needs;
  int64_t vectors;  // up to so many vectors of 16 bytes in a row; 0: any number
  ByDType kernel;
  Form form;
  int each = 0;              // vectors per thread
  int narrow_to = 32;        // kRegisters: rows of up to so many vectors share a warp
  ClusterForm cluster = {};  // kCluster
};

// A call, as the rules see it.
struct RowCase {
  uint32_t has;  // what it is, as the family knows; choose_row adds the rest
  int64_t rows;
  int64_t columns;
  int64_t vectors;  // in a row if everything is aligned, else 0
  int64_t shifted;  // the most that a row can touch if all tensors have the same misalignment, else 0
  int device;
};

inline RowKernel kernel_of(const RowRule& rule, const RowCase& row) {
  const int64_t vectors = row.vectors > 0 ? row.vectors : row.shifted;
  switch (rule.form) {
    case Form::kRegisters:
      return in_registers(rule.kernel, row.rows, vectors, rule.each, rule.vectors / rule.each, rule.narrow_to,
                          row.device);
    case Form::kSpread:
      return spread(rule.kernel, vectors, rule.each);
    case Form::kOneWarp:
      return {rule.kernel, 32, 1, static_cast<uint32_t>(vectors)};
    case Form::kCluster:
      return in_cluster(rule.kernel, row.rows, vectors, rule.cluster, row.device);
    case Form::kAnyRow:
      break;
  }
  return for_any_row(rule.kernel, row.columns, row.vectors);
}

// The last rule of a table serves any row.
template <int N>
RowKernel choose_row(const RowRule (&rules)[N], KernelFamily& family, const RowCase& row) {
  uint32_t has = row.has | (row.vectors > 0 ? kAligned : row.shifted > 0 ? kUnaligned : 0);
  const int64_t vectors = row.vectors > 0 ? row.vectors : row.shifted;
  if (row.rows <= multiprocessors(row.device)) has |= kFewRows;
  if (vectors > 0 && has_clusters(family, row.device)) has |= kClusters;
  for (const RowRule& rule : rules) {
    if (asked_rows.cluster != 0 && rule.form != Form::kCluster) continue;
    if ((rule.needs & ~has) != 0 || (rule.vectors != 0 && vectors > rule.vectors)) continue;
    const RowKernel chosen = kernel_of(rule, row);
    if (chosen.threads != 0) return chosen;
  }
  return kernel_of(rules[N - 1], row);
}

}  // namespace precast
