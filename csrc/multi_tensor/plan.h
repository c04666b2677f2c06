// A plan: the checked tensors of a launch, and their table on the device. The properties checked once here are compared
// with the tensors before every launch (is_current()), so a stale plan is never used.
#pragma once

#include "../gpu/entry_points.h"
#include "../gpu/launch.h"
#include "../host/kind.h"
#include "../host/lists.h"
#include "args.h"
#include "entries.h"

namespace precast::multi_tensor {

// The tensors of a row, in the order of the pointers in Row.
enum Member : int { kParam, kGrad, kFirst, kSecond, kThird, kCopy, kMembers };
constexpr unsigned kOnlyParam = 1U << kParam, kAllButGrad = ~(1U << kGrad);

// The lists of an op. Empty lists are omitted from the rows; the others have an entry for every row.
struct Lists {
  const char* op;
  const TensorList* member[kMembers];
  const char* name[kMembers];
  unsigned written;  // a bit for each member that is written
  const char* read;  // what the others are called
};

// Offsets in bytes. The first ones are in the table, whose length is `written`. The others are in the scratch memory,
// which kernels use to pass data to each other and which begins with the coefficients.
struct TableLayout {
  int64_t first, norm_first, slots, written, sums, total, parts, scratch;
};

struct Memory {
  char *table, *scratch;
};

class Plan {
 public:
  // Checks everything before it keeps anything; raises if a check fails. `idle` are parameters that must have no
  // gradient while the plan is in use. `places` has the group and the step index of every row, as two int32 each on the
  // CPU. It is null for a plan that is used only at once.
  Plan(const Lists& lists, const TensorList* idle, const Tensor* places);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();

  // True if every tensor is unchanged and in the same place. Gradients may have moved: the plan then takes over their
  // new addresses. They are `grads`, or the gradients of the parameters if that list is empty. `writes`: the step
  // writes gradients too; raises if two of them share memory.
  bool is_current(const TensorList& grads, bool writes);

  // Tells autograd that the parameters have changed, and with `grads` their gradients. False if that has to happen
  // through Python in this torch.
  bool count_change(bool grads) const;

  // The table on the device. It is written again on the current stream if a gradient has moved, the stream has changed
  // or more parts are needed. A table captured by a graph is kept unchanged for the life of the plan.
  Memory memory(int64_t parts);

  // scalar_beside(), apart from the tensors that are written, and if the number is written, from all.
  const float* number_beside(const Lists& lists, const char* name, const Tensor* tensor, bool written) const;

  int64_t count() const { return count_; }
  int64_t blocks() const { return first_[count_]; }
  int64_t norm_blocks() const { return norm_first_[count_]; }
  int device() const { return device_; }
  const TableLayout& layout() const { return layout_; }
  // Plain: all float32, without third and copy. Masters: all float32 but gradients and copies, which share a narrower
  // dtype.
  bool plain() const { return plain_; }
  bool masters() const { return masters_; }
  bool has(Member member) const { return count_ > 0 && lent_[member].impl != nullptr; }

 private:
  const Lent& owner(int64_t index) const;
  bool take_gradient(int64_t index, AtenTensorHandle grad, bool found, bool writes);
  void check_gradients() const;
  void keep(AtenTensorHandle& tensor);
  void release();

  int64_t count_ = 0;
  int64_t idle_count_ = 0;
  int device_ = 0;
  int32_t device_type_ = 0;
  Kinds kinds_;
  bool moved_ = true;  // the table on the device is older than rows_
  bool reusable_;      // every tensor is known by its Python object; else the plan is good for one step
  bool used_ = false;
  bool captured_ = false;
  bool once_;  // for one call
  bool plain_ = true, masters_ = true;
  void* stream_ = nullptr;
  Array<Row> rows_;
  Array<Lent> lent_;  // kMembers per row
  Array<Lent> idle_;
  Array<uint32_t> first_, norm_first_, slots_;
  Array<int32_t> grad_dtype_;
  Array<uint8_t> contiguous_;
  Array<Lent> seen_;  // gradients
  TableLayout layout_ = {};
  AtenTensorHandle table_ = nullptr, scratch_ = nullptr;
  struct Kept* kept_ = nullptr;  // tables, and their sources in pinned memory, that graphs refer to
};

// One float32 on the device of `beside`, for a kernel to read or write. Null for an absent tensor.
const float* scalar_beside(const char* op, const char* name, const Tensor* tensor, const Tensor& beside);

// The sum of squares of each gradient, and the root of the sum over all. The plan's memory needs norm_blocks() parts.
void launch_norm(const Plan& plan, const Memory& memory, float* total, float* sums);

extern KernelFamily kernels;
PRECAST_ENTRIES(MULTI_TENSOR_KERNELS)

}  // namespace precast::multi_tensor
