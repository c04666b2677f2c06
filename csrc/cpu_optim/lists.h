// Turns lists of tensors into slots: all checks, which run before anything is written, and the memory behind the
// tensors.
#pragma once

#include <new>
#include <utility>

#include "../host/lists.h"
#include "../host/overlap.h"
#include "cpu.h"

namespace precast::cpu_optim {

// Borrowed tensors, and the name of their list in messages. Empty if a rule has no such state.
struct Span {
  const char* name;
  const Tensor* data;
  int64_t size;

  const Tensor& operator[](int64_t index) const { return data[index]; }
};

inline Span span(const char* name, const TensorList& list) { return {name, &list[0], list.size()}; }

struct Lists {
  const char* op;
  Span params, grads, states[kStates], copies;
  bool same_shapes;            // a gradient must have its parameter's shape, not only the same number of elements
  bool may_lack[kStates + 1];  // states, copies: an empty tensor means none, even if the parameter has elements
};

// Gradients whose layout differs from their parameter's, copied into that layout. Kept until the update is done.
class Relaid {
 public:
  explicit Relaid(int64_t capacity) : tensors_(capacity) {}
  ~Relaid() {
    for (int64_t i = 0; i < size_; ++i) tensors_[i].~Tensor();
  }
  const Tensor& add(Tensor&& tensor) { return *new (&tensors_[size_++]) Tensor(std::move(tensor)); }

 private:
  Array<Tensor> tensors_;
  int64_t size_ = 0;
};

// Totals over the slots.
struct Total {
  int64_t slots, units, copy_bytes;
  bool moved;  // a tensor that is written has moved compared with the previous slots
};

void check_lengths(const Lists& lists);

// Makes the slots of all parameters that have elements, but does not choose their steps. `before`: the number of slots
// in `slots` from an earlier call.
Total make_slots(const Lists& lists, Relaid& relaid, Slot* slots, int64_t before);

// The ranges that are written, sorted. `ranges` has room for all streams of all slots. Fails if two of them overlap.
int64_t sort_ranges(const char* op, const Slot* slots, int64_t count, Range* ranges);

// Fails if a gradient overlaps memory that is written.
void check_gradients(const char* op, const Slot* slots, int64_t count, const Range* ranges, int64_t size);

constexpr int64_t kMostRanges = 2 + kStates;  // per slot

Factor factor(double value);

// Runs one parallel region over all slots. `unscale`: as in Work.
void run(const Slot* slots, const Total& total, const Step* steps, int rule, float unscale = 0.0f);

}  // namespace precast::cpu_optim
