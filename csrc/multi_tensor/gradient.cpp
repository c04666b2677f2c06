// The gradient that a parameter has, read without Python.
//
// torch's stable interface has no function for it. Asking Python for a thousand of them and handing over the list takes
// 0.2 ms of every step; this takes 0.01. The function is looked up by name in the libc10.so that torch has loaded, so
// that a torch without it is served too, by way of Python: nothing links to it.
#include "../common/driver.h"
#include "plan.h"

namespace precast::multi_tensor {
namespace {

// c10::TensorImpl::grad() const: takes and gives addresses only. An at::Tensor is one pointer, to a TensorImpl; a
// handle is the address of an at::Tensor.
using Function = AtenTensorHandle (*)(const void* impl);

Function function() {
  static const auto found = reinterpret_cast<Function>(find_loaded("libc10.so", "_ZNK3c1010TensorImpl4gradEv"));
  return found;
}

}  // namespace

bool gradients_are_known() { return function() != nullptr; }

AtenTensorHandle gradient_of(AtenTensorHandle param) {
  const Function grad = function();
  return grad == nullptr ? nullptr : grad(*reinterpret_cast<void**>(param));
}

bool is_defined(AtenTensorHandle tensor) {
  bool defined = false;
  PRECAST_TORCH(aoti_torch_is_defined(tensor, &defined));
  return defined;
}

}  // namespace precast::multi_tensor
