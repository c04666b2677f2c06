// The part of the forward ops on the host that does not depend on the norm.
#pragma once

#include "../gpu/row_policy.h"
#include "rows.h"

namespace precast::norm {

using Forward = void (*)(const Norm&, const ForwardRows&);

// A row in one block, or over all eight: layer_norm of 1024 x 65536 takes 83 us with eight blocks of 256 threads, 88
// with four of 512, 95 with two of 1024; of 2048 x 18432 it takes 47 us with one block, 49 with two, 63 with eight.
constexpr ClusterForm kFormOfTwo = {4, 2, 1024, 8}, kFormOfThree = {4, 3, 1024, 8};

// Results without gaps between rows.
inline ForwardRows describe(const Norm& norm, double eps) {
  ForwardRows work = {};
  work.hidden = work.y_stride = work.sum_stride = norm.hidden;
  work.eps = static_cast<float>(eps);
  work.dtype = static_cast<int>(norm.dtype);
  work.wide_columns = norm.wide_columns;
  return work;
}

// `args` has what only its norm has. `place` sets what else moves with the rows, from the number of the first row on.
template <class Args, class Place>
void launch_forward(KernelFamily& kernels, const Norm& norm, const ForwardRows& work, const RowKernel& choice,
                    Args& args, const Place& place) {
  args.weight = static_cast<const char*>(work.weight);
  args.hidden = norm.hidden;
  args.vectors = choice.vectors;
  args.inverse_hidden = static_cast<float>(1.0 / static_cast<double>(norm.hidden));
  args.eps = work.eps;
  args.wide = norm.wide_columns;
  const int entry = choice.kernel[norm.dtype];
  void* arguments[] = {&args};
  for_launches(norm.rows, choice, [&](int64_t begin, unsigned rows, LaunchShape& shape) {
    if (choice.cluster != 0) limit_clusters(kernels, norm.device, entry, shape);
    args.early = shape.early = starts_early(shape, norm.device);
    args.x = static_cast<const char*>(work.x) + begin * args.x_stride;
    args.y = static_cast<char*>(work.y) + begin * args.y_stride;
    args.rows = rows;
    place(begin);
    launch(kernels, norm.device, entry, shape, arguments);
  });
}

// `ps`: of an element, for parallel_rows.
inline void run_forward(const Norm& norm, const ForwardRows& work, ForwardFunction forward, int64_t ps) {
  parallel_rows(norm.rows, norm.hidden * ps, [&](int64_t begin, int64_t end) { forward(work, begin, end); });
}

}  // namespace precast::norm
