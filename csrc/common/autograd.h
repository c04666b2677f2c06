// What a plan asks of tensors that it knows by reference: two questions about a parameter that torch's stable interface
// has no function for (what its gradient is, and that it has changed), and the memory that looking at a tensor touches.
//
// Asking Python for a thousand gradients and handing over their list takes 0.2 ms of every step, and counting the
// changes 0.04; this takes 0.02. The functions are looked up by name in the libraries that torch has loaded, so that a
// torch without them is served too, by way of Python: nothing links to them. Both take and give addresses only. An
// at::Tensor is one pointer, to a TensorImpl; a handle is the address of an at::Tensor.
#pragma once

#include "driver.h"
#include "torch.h"

namespace precast {

// What a handle is the address of the address of.
inline const void* impl_of(AtenTensorHandle handle) { return *reinterpret_cast<const void* const*>(handle); }

// What a parameter has for a gradient: borrowed, undefined if there is none. Null if this torch has no such function.
using GradientFunction = AtenTensorHandle (*)(const void* impl);
inline GradientFunction gradient_function() {
  // c10::TensorImpl::grad() const
  static const auto found = reinterpret_cast<GradientFunction>(find_loaded("libc10.so", "_ZNK3c1010TensorImpl4gradEv"));
  return found;
}

// Counts a change of a tensor, for autograd. Null if this torch has no such function.
using VersionFunction = void (*)(AtenTensorHandle tensor);
inline VersionFunction version_function() {
  // torch::autograd::impl::bump_version(const at::Tensor&)
  static const auto found = reinterpret_cast<VersionFunction>(
      find_loaded("libtorch_cpu.so", "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE"));
  return found;
}

inline bool is_defined(AtenTensorHandle tensor) {
  bool defined = false;
  PRECAST_TORCH(aoti_torch_is_defined(tensor, &defined));
  return defined;
}

// Somebody else's reference, for as long as it is looked at.
class Borrowed {
 public:
  explicit Borrowed(AtenTensorHandle handle) : tensor_(handle) {}
  ~Borrowed() { tensor_.release(); }
  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }

 private:
  Tensor tensor_;
};

// The parts of a TensorImpl that are looked at: its head, with the pointers to storage and version, and its tail, with
// offset, number of elements and dtype. What is between them, sizes and strides, is rarely needed, and asking for it
// took a fifth of the time: a thousand tensors with their storages fill the second cache.
inline void prefetch_parts(const void* impl) {
  __builtin_prefetch(impl);
  __builtin_prefetch(static_cast<const char*>(impl) + 160);
}

inline void prefetch_tensor(AtenTensorHandle handle) {
  if (handle != nullptr) prefetch_parts(impl_of(handle));
}

}  // namespace precast
