// A plan: which tensors a launch goes over, checked, with the table of them on the device. What is checked once here is
// compared with the tensors before every launch (is_current()), so that a plan is never older than what it describes.
#pragma once

#include "../common/kind.h"
#include "../common/launch.h"
#include "../common/lists.h"
#include "args.h"

namespace precast::multi_tensor {

// The tensors of a row, in the order of the pointers in Row.
enum Member : int { kParam, kGrad, kFirst, kSecond, kThird, kCopy, kMembers };

// The lists of an op. Empty ones are left out of the rows; a list that is there has an entry for every row.
struct Lists {
  const char* op;
  const TensorList* member[kMembers];
  const char* name[kMembers];
};

// Where things are, in bytes from the start: of the table, whose length is `written`, and of the scratch memory that
// kernels leave things in for each other; it begins with the coefficients.
struct TableLayout {
  int64_t first, norm_first, slots, written, sums, total, parts, scratch;
};

struct Memory {
  char *table, *scratch;
};

class Plan {
 public:
  // Checks everything and raises before anything is kept. `idle` are parameters that must have no gradient as long as
  // the plan is used; `places` has the group and the index of the step of every row, two int32 each on the CPU, or is
  // null, for a plan that is used at once.
  Plan(const Lists& lists, const TensorList* idle, const Tensor* places);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();

  // True when every tensor is where and what it was, but for gradients, which may have moved: their new places are then
  // taken over. They are `grads`, or, if that is empty, what the parameters have for gradients.
  bool is_current(const TensorList& grads);

  // Tells autograd that the parameters have changed; false if this torch has to be told through Python.
  bool count_change() const;

  // The table on the device, written anew if a gradient has moved, the stream is another one or more parts are wanted;
  // on the current stream. A table that a graph has captured stays as it is as long as the plan lives.
  Memory memory(int64_t parts);

  int64_t count() const { return count_; }
  int64_t blocks() const { return first_[count_]; }
  int64_t norm_blocks() const { return norm_first_[count_]; }
  int device() const { return device_; }
  const TableLayout& layout() const { return layout_; }
  // All float32, without third and copy; or all but gradients and copies, which are of one narrower dtype.
  bool plain() const { return plain_; }
  bool masters() const { return masters_; }
  bool has(Member member) const { return count_ > 0 && handles_[member] != nullptr; }

 private:
  AtenTensorHandle owner(int64_t index) const;
  bool take_gradient(int64_t index, AtenTensorHandle grad, bool found);
  void keep(AtenTensorHandle& tensor);
  void release();

  int64_t count_ = 0;
  int64_t idle_count_ = 0;
  int device_ = 0;
  int32_t device_type_ = 0;
  Kinds kinds_;
  bool moved_ = true;  // the table on the device is older than rows_
  bool captured_ = false;
  bool plain_ = true, masters_ = true;
  void* stream_ = nullptr;
  Array<Row> rows_;
  Array<AtenTensorHandle> handles_;  // kMembers for each row, references of our own; null where there is none
  Array<AtenTensorHandle> idle_;
  Array<uint32_t> first_, norm_first_, slots_;
  Array<int32_t> grad_dtype_;
  Array<uint8_t> contiguous_;
  Array<Seen> seen_;
  TableLayout layout_ = {};
  AtenTensorHandle table_ = nullptr, scratch_ = nullptr;
  struct Kept* kept_ = nullptr;  // tables and their sources in pinned memory that graphs refer to
};

// One float32 on the device of `beside`, which a kernel reads or writes; null for a tensor that is not there.
const float* scalar_beside(const char* op, const char* name, const Tensor* tensor, const Tensor& beside);

// The sum of squares of each gradient, and the root of the sum of all. The plan's memory has norm_blocks() parts.
void launch_norm(const Plan& plan, const Memory& memory, float* total, float* sums);

extern KernelFamily kernels;
enum EntryIndex : int {
  kPrepare,
  kUpdate,
  kLambUpdate,
  kAdamUpdate,
  kMasterUpdate,
  kOthersUpdate,
  kNormParts,
  kSumEach,
  kSumTotal,
  kAxpby
};

}  // namespace precast::multi_tensor
