// Two questions about a parameter that torch's stable interface has no function for: what its gradient is, and that it
// has changed.
//
// Asking Python for a thousand gradients and handing over their list takes 0.2 ms of every step, and counting the
// changes 0.04; this takes 0.02. The functions are looked up by name in the libraries that torch has loaded, so that a
// torch without them is served too, by way of Python: nothing links to them. Both take and give addresses only. An
// at::Tensor is one pointer, to a TensorImpl; a handle is the address of an at::Tensor.
#include "../common/driver.h"
#include "plan.h"

namespace precast::multi_tensor {

GradientFunction gradient_function() {
  // c10::TensorImpl::grad() const
  static const auto found = reinterpret_cast<GradientFunction>(find_loaded("libc10.so", "_ZNK3c1010TensorImpl4gradEv"));
  return found;
}

VersionFunction version_function() {
  // torch::autograd::impl::bump_version(const at::Tensor&)
  static const auto found = reinterpret_cast<VersionFunction>(
      find_loaded("libtorch_cpu.so", "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE"));
  return found;
}

bool is_defined(AtenTensorHandle tensor) {
  bool defined = false;
  PRECAST_TORCH(aoti_torch_is_defined(tensor, &defined));
  return defined;
}

}  // namespace precast::multi_tensor
