// What a plan needs to know about tensors that it holds by reference. Torch's stable interface has no function to read
// a parameter's gradient, or to record that a parameter has changed. The file also prefetches the memory that
// inspecting a tensor touches.
//
// Asking Python for a thousand gradients and passing their list costs 0.2 ms per step, and counting the changes 0.04
// ms. This takes 0.02 ms. The functions are looked up by name in the libraries that torch has loaded; nothing links to
// them. A torch that lacks them still works, through Python. Both functions take and return addresses only. An
// at::Tensor is one pointer, to a TensorImpl; a handle is the address of an at::Tensor.
#pragma once

#include "torch.h"
#include "torch_names.h"

namespace precast {

// The TensorImpl behind a handle.
inline const void* impl_of(AtenTensorHandle handle) { return *reinterpret_cast<const void* const*>(handle); }

// Returns a parameter's gradient: borrowed, and undefined if there is none. Null if this torch has no such function.
using GradientFunction = AtenTensorHandle (*)(const void* impl);
inline GradientFunction gradient_function() {
  static const auto found = reinterpret_cast<GradientFunction>(find_loaded(kGradient));
  return found;
}

// Tells autograd that a tensor has changed. Null if this torch has no such function.
using VersionFunction = void (*)(AtenTensorHandle tensor);
inline VersionFunction version_function() {
  static const auto found = reinterpret_cast<VersionFunction>(find_loaded(kBumpVersion));
  return found;
}

inline bool is_defined(AtenTensorHandle tensor) {
  bool defined = false;
  PRECAST_TORCH(aoti_torch_is_defined(tensor, &defined));
  return defined;
}

// A view of a tensor whose reference has another owner.
class Borrowed {
 public:
  explicit Borrowed(AtenTensorHandle handle) : tensor_(handle) {}
  ~Borrowed() { tensor_.release(); }
  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }

 private:
  Tensor tensor_;
};

// Prefetches the parts of a TensorImpl that are read: the head, with the pointers to storage and version, and the tail,
// with offset, number of elements and dtype. The sizes and strides between them are rarely needed. Prefetching them too
// took a fifth of the time, because a thousand tensors with their storages fill the L2 cache.
inline void prefetch_parts(const void* impl) {
  __builtin_prefetch(impl);
  __builtin_prefetch(static_cast<const char*>(impl) + 160);
}

}  // namespace precast
