// The part of the backward ops on the host that does not depend on the norm.
#pragma once

#include "../gpu/walk.h"
#include "rows.h"

namespace precast::norm {

inline BackwardRows describe(const Norm& norm, const ReadRows& grad, const ReadRows& x, const ReadRows& weight,
                             Tensor& grad_x, double eps) {
  BackwardRows work = {};
  work.grad = grad.data();
  work.grad_stride = grad.stride();
  work.x = x.data();
  work.x_stride = x.stride();
  work.weight = weight.data();
  work.grad_x = grad_x.mutable_data();
  work.rows = norm.rows;
  work.hidden = norm.hidden;
  work.eps = static_cast<float>(eps);
  work.dtype = static_cast<int>(norm.dtype);
  work.wide_columns = norm.wide_columns;
  return work;
}

// Partial sums over rows: `lines` lines for each parameter's gradient.
inline Tensor make_parts(int64_t gradients, int64_t lines, const Norm& norm, int32_t dtype, const Tensor& like) {
  const int64_t sizes[] = {gradients, lines, norm.hidden};
  return empty(sizes, 3, dtype, like);
}

// Sets the strides of what every norm reads and writes, and tells which of their bits are not at multiples of 16 bytes.
template <class Args>
uint64_t set_strides(const Norm& norm, const BackwardRows& work, Args& args) {
  const int64_t bytes = norm.element_bytes();
  args.grad_stride = work.grad_stride * bytes;
  args.x_stride = work.x_stride * bytes;
  args.grad_x_stride = norm.hidden * bytes;
  return misalignment(work.grad, args.grad_stride) | misalignment(work.x, args.x_stride) |
         misalignment(work.weight, norm.hidden * norm.column_bytes()) | misalignment(work.grad_x, args.grad_x_stride);
}

// True if every row of x, its gradient and grad has the same misalignment, and the first has none.
template <class Args>
bool lie_alike(const BackwardRows& work, const Args& args) {
  const Placed grad_x = {work.grad_x, args.grad_x_stride};
  return misalignment(work.x, 0) == 0 && lies_alike({work.x, args.x_stride}, grad_x) &&
         lies_alike({work.grad, args.grad_stride}, grad_x);
}

// `args` has its strides, and what only its norm has.
template <class Args>
void launch_walk(KernelFamily& kernels, int entry, const Norm& norm, const BackwardRows& work, const WalkPlan& walk,
                 const WalkGrid& grid, Args& args) {
  if (norm.rows == 0) return;
  args.grad = static_cast<const char*>(work.grad);
  args.x = static_cast<const char*>(work.x);
  args.weight = static_cast<const char*>(work.weight);
  args.grad_x = static_cast<char*>(work.grad_x);
  args.hidden = norm.hidden;
  args.rows = norm.rows;
  args.vectors = walk.vectors;
  args.workers = static_cast<unsigned>(grid.workers);
  args.stages = walk.stages;
  args.slice = walk.slice;
  args.inverse_hidden = static_cast<float>(1.0 / static_cast<double>(norm.hidden));
  args.eps = work.eps;
  args.wide = norm.wide_columns;
  void* arguments[] = {&args};
  launch(kernels, norm.device, entry, walk_shape(walk, grid.blocks), arguments);
}

// `columns` has its results.
template <class Args>
void launch_columns(KernelFamily& kernels, int entry, const Norm& norm, const Tensor& parts, int64_t lines,
                    int64_t gradients, Args& columns) {
  columns.parts = static_cast<const float*>(parts.data());
  columns.hidden = norm.hidden;
  columns.lines = static_cast<unsigned>(lines);
  columns.dtype = static_cast<int>(norm.columns_dtype());
  void* arguments[] = {&columns};
  launch(kernels, norm.device, entry, columns_shape(norm, lines, gradients), arguments);
}

// A norm's functions of one CPU level. `ps`: of an element, for parallel_rows.
struct OnCpu {
  BackwardFunction backward;
  ReduceFunction reduce;
  int64_t ps;
};

// `results`: where the gradient of each parameter goes. Null: not wanted.
template <int kSums>
void run_backward(const OnCpu& level, const Norm& norm, BackwardRows& work, void* const (&results)[kSums],
                  const Tensor& like) {
  const int64_t chunks = cut_into_chunks(norm, &work.chunk_rows);
  const Tensor parts = make_parts(chunks, kSums, norm, float64_code(), like);
  work.parts = static_cast<double*>(parts.mutable_data());
  parallel_rows(chunks, norm.hidden * work.chunk_rows * level.ps,
                [&](int64_t begin, int64_t end) { level.backward(work, begin, end); });
  for_columns(norm, chunks, [&](int64_t begin, int64_t end) {
    for (int i = 0; i < kSums; ++i) {
      if (results[i] == nullptr) continue;
      level.reduce(work.parts + i * norm.hidden, chunks, kSums * norm.hidden, results[i],
                   static_cast<int>(norm.columns_dtype()), begin, end);
    }
  });
}

}  // namespace precast::norm
