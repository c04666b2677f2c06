// Finds the kind of a tensor: which layers of torch's dispatcher a call with it would pass through, and whether it is a
// subclass instance. A kernel that finds a tensor by itself, such as the gradient of a parameter, bypasses the
// dispatcher. Before it reads the tensor's memory it must detect two cases. The tensor may have no memory of its own (a
// __torch_dispatch__ subclass, a zero tensor), or its memory may not hold its values as they are (the negative bit).
//
// The stable interface has no function for either, and asking Python about a thousand gradients takes longer than the
// step. So both are read from the two words of the TensorImpl where this torch keeps them. Their offsets are found
// once.
#pragma once

#include "autograd.h"

namespace precast {

// Offsets of the words in bytes, from the start of a TensorImpl, or of a Python object for `type` and `impl`.
struct KindLayout {
  int keys, object, type, impl;
  const void* tensor_class;  // torch.Tensor
};

// Finds the layout. `tensor` must be a plain CPU tensor made in Python. Null if this torch uses no known layout.
const KindLayout* kind_layout(const Tensor& tensor);

// A tensor that a plan uses again without a reference of its own. With one, torch would refuse to exchange the tensor
// (torch.utils.swap_tensors), and garbage collection would not see who keeps it. The plan's owner in Python keeps the
// Python object, and that keeps its TensorImpl alive for as long as it points to it. Null if absent.
struct Lent {
  const void* impl;
  const void* object;

  // An at::Tensor is one pointer, so this one serves as a tensor whose reference has another owner.
  AtenTensorHandle handle() const {
    return impl == nullptr ? nullptr : reinterpret_cast<AtenTensorHandle>(const_cast<const void**>(&impl));
  }
};

// The kinds that a plan accepts: those that the dispatcher passed to it. They differ in whether autograd tracks the
// tensor.
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

  // Zero if a call with the tensor would reach the kernel with the tensor unchanged. Call it only if kinds are known.
  uint64_t odd(const void* impl) const { return (keys_of(impl) ^ taken_) & ~ignored_; }

  // True if the tensor has no Python object, or one whose class is torch.Tensor itself, so that there is no overridden
  // __torch_function__. Call it only if kinds are known.
  bool is_no_subclass(const void* impl) const {
    const void* const object = object_of(impl);
    return object == nullptr || word(object, layout_.type) == reinterpret_cast<uintptr_t>(layout_.tensor_class);
  }

  Lent lend(const Tensor& tensor) const {
    const void* const impl = impl_of(tensor.get());
    return {impl, known_ ? object_of(impl) : nullptr};
  }

  // True if the Python object still has this TensorImpl, which otherwise may be freed. Call it only if there is an
  // object.
  bool still(const Lent& lent) const {
    return word(lent.object, layout_.impl) == reinterpret_cast<uintptr_t>(lent.impl);
  }

  void prefetch(const Lent& lent) const {
    if (lent.impl == nullptr) return;
    __builtin_prefetch(static_cast<const char*>(lent.object) + layout_.impl);
    prefetch_parts(lent.impl);
  }

  const void* object_of(const void* impl) const {
    // Up to torch 2.9 the lowest bit says which of the two owns the other.
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

// `seen`: where a gradient and its Python object were at the last step. They may be freed.
inline void prefetch_gradient(const Lent& seen) {
  prefetch_parts(seen.impl);
  __builtin_prefetch(static_cast<const char*>(seen.impl) +
                     63);  // the head can lie in two lines, the object in the second
  __builtin_prefetch(seen.object);
}

}  // namespace precast
