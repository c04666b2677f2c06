// The op behind the schema that edits/__init__.py defines. Only the stable headers of torch are included: what they
// promise holds for every torch from 2.10 on, so this is compiled once.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include "distance.h"

namespace edits {
namespace {

using torch::stable::Tensor;

void check_sequences(const Tensor& sequences, const Tensor& lengths, int64_t batch, const char* name) {
  STD_TORCH_CHECK(sequences.is_cpu() && lengths.is_cpu(), "edit_distance: ", name, " must be on the CPU");
  STD_TORCH_CHECK(sequences.dim() == 2 && sequences.size(0) == batch, "edit_distance: ", name, " must be (", batch,
                  ", length)");
  STD_TORCH_CHECK(lengths.dim() == 1 && lengths.size(0) == batch, "edit_distance: the lengths of ", name, " must be (",
                  batch, ",)");
  const auto int64 = torch::headeronly::ScalarType::Long;
  STD_TORCH_CHECK(sequences.scalar_type() == int64 && lengths.scalar_type() == int64, "edit_distance: ", name,
                  " and its lengths must be int64");
}

void check_lengths(const int64_t* lengths, int64_t batch, int64_t most, const char* name) {
  for (int64_t i = 0; i < batch; ++i) {
    STD_TORCH_CHECK(lengths[i] >= 0 && lengths[i] <= most, "edit_distance: length ", i, " of ", name, " is ",
                    lengths[i], ", beyond 0 to ", most);
  }
}

const int64_t* data(const Tensor& tensor) { return static_cast<const int64_t*>(tensor.data_ptr()); }

Tensor edit_distance(const Tensor& a_given, const Tensor& a_lengths_given, const Tensor& b_given,
                     const Tensor& b_lengths_given) {
  STD_TORCH_CHECK(a_given.dim() == 2, "edit_distance: a must be (batch, length)");
  const int64_t batch = a_given.size(0);
  check_sequences(a_given, a_lengths_given, batch, "a");
  check_sequences(b_given, b_lengths_given, batch, "b");
  const Tensor a = torch::stable::contiguous(a_given), a_lengths = torch::stable::contiguous(a_lengths_given);
  const Tensor b = torch::stable::contiguous(b_given), b_lengths = torch::stable::contiguous(b_lengths_given);
  check_lengths(data(a_lengths), batch, a.size(1), "a");
  check_lengths(data(b_lengths), batch, b.size(1), "b");
  Tensor out = torch::stable::new_empty(a, {batch});
  int64_t* distances = static_cast<int64_t*>(out.data_ptr());
  torch::stable::parallel_for(0, batch, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      distances[i] = distance(data(a) + i * a.size(1), data(a_lengths)[i], data(b) + i * b.size(1), data(b_lengths)[i]);
    }
  });
  return out;
}

}  // namespace
}  // namespace edits

STABLE_TORCH_LIBRARY_IMPL(edits, CPU, m) { m.impl("edit_distance", TORCH_BOX(&edits::edit_distance)); }
