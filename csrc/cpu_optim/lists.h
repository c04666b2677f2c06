// From lists of tensors to slots: the checks, all of them before anything is written, and the memory they stand for.
#pragma once

#include <new>
#include <utility>

#include "../common/lists.h"
#include "../common/overlap.h"
#include "cpu.h"

namespace precast::cpu_optim {

// Tensors that somebody else owns, and the name that messages give their list. Empty where a rule has no such state.
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
  bool same_shapes;            // a gradient must have its parameter's, not only as many elements
  bool may_lack[kStates + 1];  // states, copies: an empty tensor beside a parameter with elements stands for none
};

// Gradients in another layout than their parameter, copied into it. Kept until the update is done.
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

// What the slots take together.
struct Total {
  int64_t slots, units, copy_bytes;
  bool moved;  // something that is written lies elsewhere than in the slots that were there before
};

void check_lengths(const Lists& lists);

// Makes the slots of all parameters that have elements; which step they take is left open. `before`: how many slots of
// an earlier call are in `slots`.
Total make_slots(const Lists& lists, Relaid& relaid, Slot* slots, int64_t before);

// Where everything is written, sorted; `ranges` has room for all streams of all slots. Fails if two of them overlap.
int64_t sort_ranges(const char* op, const Slot* slots, int64_t count, Range* ranges);

// Fails if a gradient overlaps with what is written.
void check_gradients(const char* op, const Slot* slots, int64_t count, const Range* ranges, int64_t size);

constexpr int64_t kMostRanges = 2 + kStates;  // of one slot

Factor factor(double value);

// One parallel region over all slots.
void run(const Slot* slots, const Total& total, const Step* steps, Rule rule);

}  // namespace precast::cpu_optim
