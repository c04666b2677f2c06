// An adapter: the table of functions for one torch, made from its C++. It is a library of its own, which needs the
// libtorch_cpu.so and libc10.so of that torch. Errors inside torch leave it as torch's own exceptions, which pass
// through the library that called, so every status is 0.
//
// Torch 2.4 to 2.9 lack some of the functions, so a wheel has an adapter for each. The layout of torch's classes
// changes between minor releases while their names stay the same. So this file is compiled for one minor release, and
// the loader opens it only in that release. No other file includes torch.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided_ops.h>
#include <string.h>
#include <torch/csrc/api/include/torch/version.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "checks.h"
#include "torch_table.h"

#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR != PRECAST_TORCH
#error "these are the headers of another torch than the adapter is made for"
#endif

// Without OpenMP, parallel_for of ATen/Parallel.h is a plain loop. We compile with it but do not link it: calls into
// the OpenMP runtime resolve to the one that libtorch_cpu.so loads, so we share torch's threads.
#if AT_PARALLEL_OPENMP && !defined(_OPENMP)
#error "torch_adapter.cpp needs -fopenmp"
#endif

namespace precast {
namespace {

at::Tensor& tensor_of(AtenTensorHandle handle) { return *reinterpret_cast<at::Tensor*>(handle); }

AtenTensorHandle handle_of(at::Tensor&& tensor) {
  return reinterpret_cast<AtenTensorHandle>(new at::Tensor(std::move(tensor)));
}

c10::List<at::Tensor>& list_of(StableListHandle handle) { return *reinterpret_cast<c10::List<at::Tensor>*>(handle); }

template <class Value>
StableIValue bits_of(Value value) {
  StableIValue bits = 0;
  memcpy(&bits, &value, sizeof(value));
  return bits;
}

// Converts an argument of the schema's type to the form that a boxed function takes (Argument of torch.h).
StableIValue take(c10::IValue&& value, const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return bits_of(handle_of(std::move(value).toTensor()));
    case c10::TypeKind::OptionalType:
      return value.isNone() ? 0 : bits_of(new StableIValue(bits_of(handle_of(std::move(value).toTensor()))));
    case c10::TypeKind::ListType:
      return bits_of(new c10::List<at::Tensor>(std::move(value).toTensorList()));
    case c10::TypeKind::FloatType:
      return bits_of(value.toDouble());
    case c10::TypeKind::IntType:
      return bits_of(value.toInt());
    case c10::TypeKind::BoolType:
      return bits_of(value.toBool());
    default:
      fail("precast: no kernel takes a %s", type.str().c_str());
  }
}

using Function = void (*)(StableIValue*, uint64_t, uint64_t);

constexpr size_t kMostValues = 32;  // arguments or results of one op

// A boxed function as a kernel of torch's dispatcher.
class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(Function function) : function_(function) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) const {
    const auto& arguments = op.schema().arguments();
    const size_t taken = arguments.size();
    const size_t given = op.schema().returns().size();
    PRECAST_CHECK(std::max(taken, given) <= kMostValues, "precast: an op takes %zu and gives %zu values", taken, given);
    StableIValue values[kMostValues];
    for (size_t i = 0; i < taken; ++i) {
      values[i] = take(std::move((*stack)[stack->size() - taken + i]), *arguments[i].type());
    }
    stack->resize(stack->size() - taken);
    function_(values, taken, given);
    const auto& returns = op.schema().returns();
    for (size_t i = 0; i < given; ++i) {
      const auto kind = returns[i].type()->kind();
      if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::BoolType) {
        stack->push_back(kind == c10::TypeKind::IntType ? c10::IValue(static_cast<int64_t>(values[i]))
                                                        : c10::IValue(values[i] != 0));
        continue;
      }
      const std::unique_ptr<at::Tensor> result(reinterpret_cast<at::Tensor*>(values[i]));
      stack->emplace_back(std::move(*result));
    }
  }

 private:
  Function function_;
};

int32_t aoti_torch_dtype_float32() { return static_cast<int32_t>(c10::kFloat); }
int32_t aoti_torch_dtype_float16() { return static_cast<int32_t>(c10::kHalf); }
int32_t aoti_torch_dtype_bfloat16() { return static_cast<int32_t>(c10::kBFloat16); }
int32_t aoti_torch_dtype_float64() { return static_cast<int32_t>(c10::kDouble); }
int32_t aoti_torch_dtype_int64() { return static_cast<int32_t>(c10::kLong); }
int32_t aoti_torch_dtype_int32() { return static_cast<int32_t>(c10::kInt); }
int32_t aoti_torch_dtype_int16() { return static_cast<int32_t>(c10::kShort); }
int32_t aoti_torch_dtype_int8() { return static_cast<int32_t>(c10::kChar); }
int32_t aoti_torch_dtype_uint8() { return static_cast<int32_t>(c10::kByte); }
int32_t aoti_torch_dtype_bool() { return static_cast<int32_t>(c10::kBool); }
int32_t aoti_torch_dtype_complex64() { return static_cast<int32_t>(c10::kComplexFloat); }
int32_t aoti_torch_dtype_complex128() { return static_cast<int32_t>(c10::kComplexDouble); }
int32_t aoti_torch_dtype_complex32() { return static_cast<int32_t>(c10::kComplexHalf); }
int32_t aoti_torch_dtype_float8_e4m3fn() { return static_cast<int32_t>(c10::kFloat8_e4m3fn); }
int32_t aoti_torch_dtype_float8_e5m2() { return static_cast<int32_t>(c10::kFloat8_e5m2); }

int32_t aoti_torch_device_type_cpu() { return static_cast<int32_t>(c10::DeviceType::CPU); }
int32_t aoti_torch_device_type_cuda() { return static_cast<int32_t>(c10::DeviceType::CUDA); }
int32_t aoti_torch_device_type_meta() { return static_cast<int32_t>(c10::DeviceType::Meta); }

AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* dim) {
  *dim = tensor_of(tensor).dim();
  return 0;
}

AOTITorchError aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* numel) {
  *numel = tensor_of(tensor).numel();
  return 0;
}

AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** sizes) {
  *sizes = const_cast<int64_t*>(tensor_of(tensor).sizes().data());
  return 0;
}

AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** strides) {
  *strides = const_cast<int64_t*>(tensor_of(tensor).strides().data());
  return 0;
}

AOTITorchError aoti_torch_get_storage_offset(AtenTensorHandle tensor, int64_t* offset) {
  *offset = tensor_of(tensor).storage_offset();
  return 0;
}

AOTITorchError aoti_torch_get_storage_size(AtenTensorHandle tensor, int64_t* bytes) {
  const c10::Storage& storage = tensor_of(tensor).unsafeGetTensorImpl()->unsafe_storage();
  *bytes = storage ? static_cast<int64_t>(storage.nbytes()) : 0;
  return 0;
}

AOTITorchError aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* contiguous) {
  *contiguous = tensor_of(tensor).is_contiguous();
  return 0;
}

AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* dtype) {
  *dtype = static_cast<int32_t>(tensor_of(tensor).scalar_type());
  return 0;
}

AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* type) {
  *type = static_cast<int32_t>(tensor_of(tensor).device().type());
  return 0;
}

AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* index) {
  *index = tensor_of(tensor).device().index();
  return 0;
}

AOTITorchError torch_get_const_data_ptr(AtenTensorHandle tensor, const void** data) {
  *data = tensor_of(tensor).const_data_ptr();
  return 0;
}

AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** data) {
  *data = tensor_of(tensor).mutable_data_ptr();
  return 0;
}

AOTITorchError aoti_torch_is_defined(AtenTensorHandle tensor, bool* defined) {
  *defined = tensor_of(tensor).defined();
  return 0;
}

AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle tensor, AtenTensorHandle* same) {
  *same = handle_of(at::Tensor(tensor_of(tensor)));
  return 0;
}

AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor) {
  delete reinterpret_cast<at::Tensor*>(tensor);
  return 0;
}

AOTITorchError make_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                            int32_t device_type, int32_t device_index, bool pinned, AtenTensorHandle* made) {
  const auto length = static_cast<size_t>(dim);
  const c10::Device device(static_cast<c10::DeviceType>(device_type), static_cast<c10::DeviceIndex>(device_index));
  *made = handle_of(at::_ops::empty_strided::call(c10::fromIntArrayRefSlow({sizes, length}),
                                                  c10::fromIntArrayRefSlow({strides, length}),
                                                  static_cast<c10::ScalarType>(dtype), c10::kStrided, device, pinned));
  return 0;
}

AOTITorchError aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle* made) {
  return make_strided(dim, sizes, strides, dtype, device_type, device_index, false, made);
}

AOTITorchError aoti_torch_empty_strided_pinned(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                               int32_t device_type, int32_t device_index, AtenTensorHandle* made) {
  return make_strided(dim, sizes, strides, dtype, device_type, device_index, true, made);
}

AOTITorchError aoti_torch_copy_(AtenTensorHandle to, AtenTensorHandle from, int32_t non_blocking) {
  tensor_of(to).copy_(tensor_of(from), non_blocking != 0);
  return 0;
}

AOTITorchError torch_list_size(StableListHandle list, size_t* size) {
  *size = list_of(list).size();
  return 0;
}

AOTITorchError torch_list_get_item(StableListHandle list, size_t index, StableIValue* item) {
  *item = bits_of(handle_of(at::Tensor(list_of(list).get(index))));
  return 0;
}

AOTITorchError torch_delete_list(StableListHandle list) {
  delete reinterpret_cast<c10::List<at::Tensor>*>(list);
  return 0;
}

AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
                                  void* context) {
  at::parallel_for(begin, end, grain, [&](int64_t from, int64_t to) { body(from, to, context); });
  return 0;
}

AOTITorchError torch_get_num_threads(uint32_t* threads) {
  *threads = static_cast<uint32_t>(at::get_num_threads());
  return 0;
}

AOTITorchError aoti_torch_library_init_impl(const char* space, const char* key, const char* file, uint32_t line,
                                            TorchLibraryHandle* library) {
  *library = reinterpret_cast<TorchLibraryHandle>(
      new torch::Library(torch::Library::IMPL, space, c10::parseDispatchKey(key), file, line));
  return 0;
}

AOTITorchError torch_library_impl(TorchLibraryHandle library, const char* op, Function function, uint64_t) {
  reinterpret_cast<torch::Library*>(library)->impl(
      op, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(function)));
  return 0;
}

// The errors leave as exceptions, so there is no text to ask for.
constexpr const char* (*torch_exception_get_what_without_backtrace)() = nullptr;

#define PRECAST_SINCE(major, minor, result, name, parameters) name,
#define PRECAST_OPTIONAL_SINCE(major, minor, result, name, parameters) name,
constexpr TorchTable kTable = {
    sizeof(TorchTable),
    kTorchTableVersion,
#include "torch_functions.h"
};

}  // namespace
}  // namespace precast

PRECAST_EXPORT const precast::TorchTable* precast_torch_table() { return &precast::kTable; }
