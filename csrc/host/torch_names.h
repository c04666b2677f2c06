// What we use of torch beyond the table of functions: names in the libraries that it has loaded, and places in its
// objects. Together with torch_functions.h this is everything of torch that the library relies on.
//
// All of it is optional. A name is looked up once; a torch that lacks it works without what it serves. Names of C++
// functions hold the types of their parameters, so a function with other parameters is another name. Every one is in
// torch 2.4 to 2.15; test_torch_c.py looks for them in the installed torch.
//
// Layouts, found by kind.cpp in a tensor that torch has just made, by values that torch writes itself; used only if
// each is found in exactly one place:
//   TensorImpl: the word with its dispatch keys; the word that points to its Python object
//   Python's torch.Tensor: the word with its class; the word that points to the TensorImpl
//   at::Tensor is one pointer, to the TensorImpl, and a handle is the address of one (autograd.h, kind.h)
//   PODLocalDispatchKeySet: two words, included and excluded keys (direct.cpp)
//   c10::Dispatcher::OperatorDef: the count of kernels, found by the caller of precast_operator()
// Without them plans ask Python about each tensor, and there are no direct functions.
#pragma once

#include "../gpu/driver.h"

namespace precast {

struct TorchName {
  const char* library;
  const char* name;
};

inline void* find_loaded(const TorchName& one) { return find_loaded(one.library, one.name); }

// The current stream of a device. Without it no kernel runs on a GPU: CUDA builds have it from 2.4.1 on.
constexpr TorchName kCurrentStream = {"libtorch_cuda.so", "aoti_torch_get_current_cuda_stream"};

// at::_ops::empty_strided::call, called with types of our own that are laid out alike (torch.cpp). Without it an
// allocation that fails is a RuntimeError instead of torch's own, such as torch.OutOfMemoryError.
constexpr TorchName kEmptyStrided = {
    "libtorch_cpu.so",
    "_ZN2at4_ops13empty_strided4callEN3c108ArrayRefINS2_6SymIntEEES5_St8optionalINS2_10ScalarTypeEES6_INS2_6LayoutEES6_"
    "INS2_6DeviceEES6_IbE"};

// c10::TensorImpl::grad() const. Without it optimizers ask Python for each gradient.
constexpr TorchName kGradient = {"libc10.so", "_ZNK3c1010TensorImpl4gradEv"};
// torch::autograd::impl::bump_version(const at::Tensor&). Without it Python counts the changes of parameters, and
// functions that write have no direct way.
constexpr TorchName kBumpVersion = {"libtorch_cpu.so", "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE"};

// Kinds of tensors, and direct functions. c10::TensorImpl::_change_backend_component_keys(c10::Device)
constexpr TorchName kSetBackend = {"libc10.so", "_ZN3c1010TensorImpl30_change_backend_component_keysENS_6DeviceE"};
// THPVariable_Wrap(const at::TensorBase&)
constexpr TorchName kWrap = {"libtorch_python.so", "_Z16THPVariable_WrapRKN2at10TensorBaseE"};
constexpr TorchName kTensorClass = {"libtorch_python.so", "THPVariableClass"};

// Direct functions alone.
constexpr TorchName kParameterClass = {"libtorch_python.so", "ParameterClass"};
// at::hasCallbacks(), of profilers
constexpr TorchName kObserved = {"libtorch_cpu.so", "_ZN2at12hasCallbacksEv"};
// at::impl::torch_function_mode_enabled()
constexpr TorchName kFunctionMode = {"libtorch_cpu.so", "_ZN2at4impl27torch_function_mode_enabledEv"};
// c10::GradMode::is_enabled()
constexpr TorchName kRecords = {"libc10.so", "_ZN3c108GradMode10is_enabledEv"};
// c10::TensorImpl::requires_grad() const
constexpr TorchName kRequiresGrad = {"libc10.so", "_ZNK3c1010TensorImpl13requires_gradEv"};
// c10::Dispatcher::realSingleton()
constexpr TorchName kDispatcher = {"libtorch_cpu.so", "_ZN3c1010Dispatcher13realSingletonEv"};
// c10::Dispatcher::findSchemaOrThrow(const char*, const char*)
constexpr TorchName kFindSchema = {"libtorch_cpu.so", "_ZN3c1010Dispatcher17findSchemaOrThrowEPKcS2_"};
// c10::OperatorHandle::~OperatorHandle(), without which the call before would return its handle in registers
constexpr TorchName kEndOfHandle = {"libtorch_cpu.so", "_ZN3c1014OperatorHandleD1Ev"};
// c10::impl::raw_local_dispatch_key_set, a variable of threads: dlsym returns the calling thread's.
constexpr TorchName kThreadKeys = {"libc10.so", "_ZN3c104impl26raw_local_dispatch_key_setE"};

}  // namespace precast
