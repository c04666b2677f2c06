// The parts of torch.h and checks.h that are not inline: texts of errors, and calls into torch that need not be fast.
#include "torch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>
#include <optional>

#include "torch_names.h"

namespace precast {

namespace {

// at::_ops::empty_strided::call, with types of our own that are laid out and passed like torch's: a SymInt without
// symbols is an int64_t, ScalarType, Layout and the two parts of a Device are bytes.
struct Numbers {
  const int64_t* data;
  size_t count;
};
struct Device {
  int8_t type, index;
};
struct Made {
  void* impl;
  ~Made() {}  // like a tensor, it is returned in memory and not in a register
};
using EmptyStrided = Made (*)(Numbers sizes, Numbers strides, std::optional<int8_t> dtype, std::optional<int8_t> layout,
                              std::optional<Device> device, std::optional<bool> pinned);

// Repeats an allocation that failed in torch's C interface, which keeps the type of the error to itself; an adapter's
// failures leave as torch's own exceptions. This function
// lets it out, so that a caller in Python gets what torch.empty raises: torch.OutOfMemoryError on a GPU. Null if this
// torch has no such function.
AtenTensorHandle empty_strided_again(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                     int32_t device_type, int32_t device_index) {
  const auto make = reinterpret_cast<EmptyStrided>(find_loaded(kEmptyStrided));
  if (make == nullptr) return nullptr;
  const auto count = static_cast<size_t>(dim);
  const Device device{static_cast<int8_t>(device_type), static_cast<int8_t>(device_index)};
  return reinterpret_cast<AtenTensorHandle>(
      new Made(make({sizes, count}, {strides, count}, static_cast<int8_t>(dtype), std::nullopt, device, std::nullopt)));
}

}  // namespace
ShapeText::ShapeText(const int64_t* sizes, int64_t dim) {
  size_t used = static_cast<size_t>(snprintf(text, sizeof(text), "("));
  for (int64_t i = 0; i < dim && used + 32 < sizeof(text); ++i) {
    const char* separator = i + 1 < dim ? ", " : (dim == 1 ? "," : "");
    used += static_cast<size_t>(snprintf(text + used, sizeof(text) - used, "%lld%s", printable(sizes[i]), separator));
  }
  snprintf(text + used, sizeof(text) - used, ")");
}

namespace {

struct NamedDType {
  int32_t code;
  const char* name;
  int64_t bytes;
};

const NamedDType* named_dtype(int32_t code) {
  static const NamedDType known[] = {
      {aoti_torch_dtype_float32(), "float32", 4},
      {aoti_torch_dtype_float16(), "float16", 2},
      {aoti_torch_dtype_bfloat16(), "bfloat16", 2},
      {aoti_torch_dtype_float64(), "float64", 8},
      {aoti_torch_dtype_int64(), "int64", 8},
      {aoti_torch_dtype_int32(), "int32", 4},
      {aoti_torch_dtype_int16(), "int16", 2},
      {aoti_torch_dtype_int8(), "int8", 1},
      {aoti_torch_dtype_uint8(), "uint8", 1},
      {aoti_torch_dtype_bool(), "bool", 1},
      {aoti_torch_dtype_complex64(), "complex64", 8},
      {aoti_torch_dtype_complex128(), "complex128", 16},
      {aoti_torch_dtype_complex32(), "complex32", 4},
      {aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn", 1},
      {aoti_torch_dtype_float8_e5m2(), "float8_e5m2", 1},
  };
  for (const NamedDType& entry : known) {
    if (entry.code == code) return &entry;
  }
  return nullptr;
}

// 1 for a dtype that no kernel takes: each op refuses it.
int64_t bytes_of(int32_t dtype) {
  const NamedDType* const known = named_dtype(dtype);
  return known != nullptr ? known->bytes : 1;
}

// The bytes from the beginning of the storage to the end of the last element; 0 without elements.
uint64_t covered_bytes(const Tensor& tensor) {
  const int64_t dim = tensor.dim(), *sizes = tensor.sizes(), *strides = tensor.strides();
  uint64_t last = static_cast<uint64_t>(tensor.storage_offset());
  for (int64_t i = 0; i < dim; ++i) {
    if (sizes[i] == 0) return 0;
    last += static_cast<uint64_t>(sizes[i] - 1) * static_cast<uint64_t>(strides[i]);
  }
  return (last + 1) * static_cast<uint64_t>(bytes_of(tensor.dtype_code()));
}

}  // namespace

const char* dtype_name(int32_t dtype) {
  const NamedDType* const known = named_dtype(dtype);
  return known != nullptr ? known->name : "another dtype";
}

bool Tensor::has_memory() const {
  const uint64_t covered = covered_bytes(*this);
  return covered == 0 || (covered <= static_cast<uint64_t>(storage_bytes()) && data() != nullptr);
}

void no_tensor(const char* op, size_t index, const Tensor* tensor, const std::runtime_error& error) {
  bool defined = true;
  const bool known =
      tensor != nullptr && aoti_torch_is_defined != nullptr && aoti_torch_is_defined(tensor->get(), &defined) == 0;
  if (known ? defined : strstr(error.what(), "undefined Tensor") == nullptr) throw error;
  fail("%s: argument %zu is None; needed a tensor", op, index + 1);
}

void no_memory(const char* op, size_t index, const Tensor& tensor) {
  fail(
      "%s: argument %zu has shape %s and needs %lld bytes of its storage, which has %lld; it was freed or shrunk after "
      "the tensor was made",
      op, index + 1, shape_of(tensor).text, printable(static_cast<int64_t>(covered_bytes(tensor))),
      printable(tensor.storage_bytes()));
}

DeviceText::DeviceText(int32_t type, int32_t index) {
  if (type == aoti_torch_device_type_cpu()) {
    snprintf(text, sizeof(text), "cpu");
  } else if (type == aoti_torch_device_type_cuda()) {
    snprintf(text, sizeof(text), "cuda:%d", static_cast<int>(index));
  } else if (type == aoti_torch_device_type_meta()) {
    snprintf(text, sizeof(text), "meta");
  } else {
    snprintf(text, sizeof(text), "device type %d", static_cast<int>(type));
  }
}

void torch_failed(const char* call) {
  const char* what = nullptr;
  if (torch_exception_get_what_without_backtrace != nullptr) what = torch_exception_get_what_without_backtrace();
  if (what != nullptr && *what != '\0') fail("%s (torch, in %s)", what, call);
  fail("torch failed in %s; its message is on the standard error stream", call);
}

TensorList::TensorList(StableListHandle list) : tensors_(nullptr), size_(0) {
  size_t size = 0;
  PRECAST_TORCH(torch_list_size(list, &size));
  tensors_ = static_cast<Tensor*>(malloc((size + 1) * sizeof(Tensor)));
  if (tensors_ == nullptr) throw std::bad_alloc();
  for (size_t i = 0; i < size; ++i) {
    StableIValue value = 0;
    PRECAST_TORCH(torch_list_get_item(list, i, &value));
    new (tensors_ + i) Tensor(reinterpret_cast<AtenTensorHandle>(value));
  }
  size_ = static_cast<int64_t>(size);
  PRECAST_TORCH(torch_delete_list(list));
}

TensorList::~TensorList() {
  for (int64_t i = 0; i < size_; ++i) tensors_[i].~Tensor();
  free(tensors_);
}

Tensor empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
                     int32_t device_index) {
  AtenTensorHandle made = nullptr;
  if (aoti_torch_empty_strided(dim, sizes, strides, dtype, device_type, device_index, &made) != 0) {
    made = empty_strided_again(dim, sizes, strides, dtype, device_type, device_index);
    if (made == nullptr) torch_failed("empty_strided");
  }
  return Tensor(made);
}

Tensor empty(const int64_t* sizes, int64_t dim, int32_t dtype, const Tensor& like) {
  constexpr int64_t kMaxDim = 64;
  PRECAST_CHECK(dim <= kMaxDim, "precast: a tensor has %lld dimensions; at most 64 are supported", printable(dim));
  int64_t strides[kMaxDim];
  int64_t stride = 1;
  for (int64_t i = dim - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
  return empty_strided(dim, sizes, strides, dtype, like.device_type(), like.device_index());
}

Tensor another(const Tensor& tensor) {
  AtenTensorHandle same = nullptr;
  torch_check(aoti_torch_new_tensor_handle(tensor.get(), &same), "new_tensor_handle");
  return Tensor(same);
}

Tensor contiguous(const Tensor& tensor) {
  if (tensor.is_contiguous()) return another(tensor);
  Tensor copy = empty_contiguous_like(tensor);
  PRECAST_TORCH(aoti_torch_copy_(copy.get(), tensor.get(), 0));
  return copy;
}

Tensor with_strides_of(const Tensor& tensor, const Tensor& like) {
  Tensor copy = empty_strided(like.dim(), like.sizes(), like.strides(), tensor.dtype_code(), tensor.device_type(),
                              tensor.device_index());
  PRECAST_TORCH(aoti_torch_copy_(copy.get(), tensor.get(), 0));
  return copy;
}

void wrong_arity(uint64_t arguments, uint64_t taken, uint64_t results, uint64_t given) {
  fail("precast: an op's schema has %llu arguments and %llu results, its kernel takes %llu and gives %llu",
       static_cast<unsigned long long>(arguments), static_cast<unsigned long long>(results),
       static_cast<unsigned long long>(taken), static_cast<unsigned long long>(given));
}

int64_t register_implementations(const Family& family, const char* key, const char* space) {
  int64_t count = 0;
  for (int64_t i = 0; i < family.implementation_count; ++i) count += strcmp(family.implementations[i].key, key) == 0;
  if (count == 0) return 0;
  TorchLibraryHandle library = nullptr;  // never deleted: that would remove the kernels
  torch_check(aoti_torch_library_init_impl(space, key, __FILE__, __LINE__, &library), "library_init_impl");
  for (int64_t i = 0; i < family.implementation_count; ++i) {
    const Implementation& one = family.implementations[i];
    if (strcmp(one.key, key) == 0)
      torch_check(torch_library_impl(library, one.op, one.function, kTorchAbiVersion), one.op);
  }
  return count;
}

}  // namespace precast
