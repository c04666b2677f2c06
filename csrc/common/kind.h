// What kind of tensor torch has at hand: which layers of its dispatcher a call with it would go through, and whether it
// is an instance of a subclass. A kernel that finds a tensor by itself, as the gradient of a parameter, has not been
// through the dispatcher. It must see that a tensor has no memory of its own (a __torch_dispatch__ subclass, a zero
// tensor), or means something else than its memory says (the negative bit), before it looks at that memory.
//
// The stable interface has no function for either, and asking Python about a thousand gradients takes longer than the
// step. So both are read where this torch keeps them: two words of the TensorImpl, whose places are found once.
#pragma once

#include "autograd.h"

namespace precast {

// Where the words are, in bytes from the beginning of a TensorImpl or, `type`, of a Python object.
struct KindLayout {
  int keys, object, type;
  const void* tensor_class;  // torch.Tensor
};

// `tensor` is a plain one on the CPU, made in Python. Null if this torch keeps them in no way that is known.
const KindLayout* kind_layout(const Tensor& tensor);

// The kinds that a plan takes: those that the dispatcher handed over. They differ in whether autograd knows the tensor.
class Kinds {
 public:
  explicit Kinds(const KindLayout* layout) : known_(layout != nullptr) {
    if (known_) layout_ = *layout;
  }

  bool known() const { return known_; }

  void learn(const Tensor& tensor) {
    if (!known_) return;
    const uint64_t keys = keys_of(impl_of(tensor.get()));
    if (taken_ == 0) taken_ = keys;
    ignored_ |= taken_ ^ keys;
  }

  // Zero if a call with the tensor would come to the kernel with just this tensor. Only where kinds are known.
  uint64_t odd(const void* impl) const { return (keys_of(impl) ^ taken_) & ~ignored_; }

  // Whether Python has no object for the tensor, or one of torch.Tensor itself, without a __torch_function__ of its
  // own. Only where kinds are known.
  bool is_no_subclass(const void* impl) const {
    const void* const object = object_of(impl);
    return object == nullptr || word(object, layout_.type) == reinterpret_cast<uintptr_t>(layout_.tensor_class);
  }

  const void* object_of(const void* impl) const {
    // Up to torch 2.9 the lowest bit says who owns the other.
    return reinterpret_cast<const void*>(word(impl, layout_.object) & ~uintptr_t{1});
  }

 private:
  static uintptr_t word(const void* at, int offset) {
    uintptr_t value;
    memcpy(&value, static_cast<const char*>(at) + offset, sizeof(value));
    return value;
  }
  uint64_t keys_of(const void* impl) const { return word(impl, layout_.keys); }

  bool known_;
  KindLayout layout_ = {};
  uint64_t taken_ = 0, ignored_ = 0;
};

// Where a gradient and its Python object were at the last step: only ever asked for ahead of time.
struct Seen {
  const void *impl, *object;
};

inline void prefetch_gradient(const Seen& seen) {
  prefetch_parts(seen.impl);
  __builtin_prefetch(static_cast<const char*>(seen.impl) +
                     63);  // the head can lie in two lines, the object in the second
  __builtin_prefetch(seen.object);
}

}  // namespace precast
