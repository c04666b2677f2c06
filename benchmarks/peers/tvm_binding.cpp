// The peer that loads as flashinfer does: the same CPU kernel behind tvm-ffi, which knows tensors by DLPack and no
// torch.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include "norm/cpu.h"

namespace {

namespace norm = precast::rms_norm;

void forward(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y, double eps) {
  norm::ForwardRows rows{};
  rows.x = x.data_ptr();
  rows.weight = weight.data_ptr();
  rows.y = y.data_ptr();
  rows.hidden = rows.x_stride = rows.y_stride = weight.size(0);
  rows.eps = static_cast<float>(eps);
  rows.dtype = 0;  // the number of float32 in precast::DType
  norm::PRECAST_CPU_LEVEL::forward(rows, 0, x.numel() / rows.hidden);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, forward)
