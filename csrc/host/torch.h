// The adapter to torch. A family's host.cpp uses only these names of torch, and does not depend on the torch ABI that
// it is compiled for.
//
// The adapter uses torch's C interface, declared in torch_c.h: plain C functions, no C++ types and no headers of torch.
// Arguments of an op arrive as raw handles, without a shared_ptr or a copy.
//
// How a family declares its implementations (at the end of its host.cpp):
//
//   precast::Tensor rms_norm_cpu(const Tensor& x, const Tensor& weight, double eps, int64_t casting) { ... }
//   void adam_cpu(const TensorList& params, const TensorList& grads, double lr, bool maximize) { ... }
//
//   constexpr Implementation kImplementations[] = {
//       PRECAST_IMPLEMENTATION("rms_norm", "CPU", rms_norm_cpu),
//       PRECAST_IMPLEMENTATION("adam_", "CPU", adam_cpu),
//   };
//   PRECAST_FAMILY(rms_norm, kImplementations, &kernels);  // `kernels` of launch.h; nullptr for a family without any
//
// Every Tensor argument has memory behind all its elements when the function is called; an absent Tensor? is a null
// Tensor*, never a null data pointer.
// Parameters: const Tensor&, const Tensor* (Tensor?), const TensorList&, double (float), int64_t (int), bool. Results:
// void, Tensor, TensorPair, TensorTriple, int64_t, bool.
// The table is constant data: nothing runs when the library is opened. precast_register() of api.cpp walks it.
#pragma once

#include <stdint.h>
#include <string.h>

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "checks.h"
#include "family.h"
#include "torch_c.h"

namespace precast {

// Raises the error of a failed call into torch. The message is torch's own if this torch makes it available (from 2.13
// on).
[[noreturn]] void torch_failed(const char* call) __attribute__((cold));

inline void torch_check(AOTITorchError status, const char* call) {
  if (__builtin_expect(status != 0, 0)) torch_failed(call);
}

#define PRECAST_TORCH(call) ::precast::torch_check((call), #call)

// The dtypes that kernels support, with the numbers that device code and CPU kernels use.
enum class DType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kOther = 3 };

// What an op asks about its arguments again and again. Each question is a call into torch, of some nanoseconds.
struct Facts {
  int64_t dim;
  const int64_t *sizes, *strides;
  int32_t dtype;
};

// Owns one reference to a tensor. Movable only, so passing tensors around costs no reference counting.
class Tensor {
 public:
  explicit Tensor(AtenTensorHandle handle) noexcept : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    facts_ = other.facts_ = nullptr;
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  int64_t dim() const { return facts_ != nullptr ? facts_->dim : ask<int64_t>(aoti_torch_get_dim, "dim"); }
  int64_t numel() const { return ask<int64_t>(aoti_torch_get_numel, "numel"); }
  // Borrowed, `dim()` values each.
  const int64_t* sizes() const {
    return facts_ != nullptr ? facts_->sizes : ask<int64_t*>(aoti_torch_get_sizes, "sizes");
  }
  const int64_t* strides() const {
    return facts_ != nullptr ? facts_->strides : ask<int64_t*>(aoti_torch_get_strides, "strides");
  }
  int64_t storage_offset() const { return ask<int64_t>(aoti_torch_get_storage_offset, "storage offset"); }
  int64_t storage_bytes() const { return ask<int64_t>(aoti_torch_get_storage_size, "storage size"); }
  bool is_contiguous() const { return ask<bool>(aoti_torch_is_contiguous, "is_contiguous"); }

  // Torch's own numbers. Compare them, or print them with dtype_name().
  int32_t dtype_code() const { return facts_ != nullptr ? facts_->dtype : ask<int32_t>(aoti_torch_get_dtype, "dtype"); }
  int32_t device_type() const { return ask<int32_t>(aoti_torch_get_device_type, "device type"); }
  int32_t device_index() const { return ask<int32_t>(aoti_torch_get_device_index, "device index"); }

  // The first element, with the storage offset applied; null for a tensor without elements.
  const void* data() const { return ask<const void*>(torch_get_const_data_ptr, "data pointer"); }
  void* mutable_data() const { return ask<void*>(torch_get_mutable_data_ptr, "data pointer"); }

  // True if the storage covers all elements. It may have been freed or shrunk since the tensor was made. A wrapper that
  // the dispatcher was told to let through has sizes but no memory.
  bool has_memory() const;

  // Answers later questions from `facts`, which must live as long as this object.
  void keep_facts(Facts* facts) {
    *facts = {dim(), sizes(), strides(), dtype_code()};
    facts_ = facts;
  }

 private:
  template <class Value>
  Value ask(AOTITorchError (*question)(AtenTensorHandle, Value*), const char* what) const {
    Value answer{};
    torch_check(question(handle_, &answer), what);
    return answer;
  }

  AtenTensorHandle handle_;
  const Facts* facts_ = nullptr;  // stays behind when the reference moves
};

// A Tensor argument.
class TensorArgument {
 public:
  explicit TensorArgument(AtenTensorHandle handle) noexcept : tensor_(handle) {}
  TensorArgument(const TensorArgument&) = delete;
  TensorArgument& operator=(const TensorArgument&) = delete;

  operator const Tensor&() const { return tensor_; }
  const Tensor* get() const { return &tensor_; }
  void keep_facts() { tensor_.keep_facts(&facts_); }

 private:
  Tensor tensor_;
  Facts facts_;
};

using TensorPair = std::pair<Tensor, Tensor>;
struct TensorTriple {
  Tensor first, second, third;
};

// A Tensor? argument; None is null.
class OptionalTensor {
 public:
  // Takes the reference over and frees the heap cell in which torch passes a value that is not None.
  explicit OptionalTensor(StableIValue* cell) noexcept : tensor_(nullptr) {
    if (cell == nullptr) return;
    tensor_ = Tensor(reinterpret_cast<AtenTensorHandle>(*cell));
    delete cell;
  }
  OptionalTensor(const OptionalTensor&) = delete;
  OptionalTensor& operator=(const OptionalTensor&) = delete;

  operator const Tensor*() const { return get(); }
  const Tensor* get() const { return tensor_.get() != nullptr ? &tensor_ : nullptr; }
  void keep_facts() {
    if (tensor_.get() != nullptr) tensor_.keep_facts(&facts_);
  }

 private:
  Tensor tensor_;
  Facts facts_;
};

// A Tensor[] argument. The list on the stack gives out each reference only once, so the constructor takes all of them.
class TensorList {
 public:
  explicit TensorList(StableListHandle list);
  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;
  ~TensorList();

  int64_t size() const { return size_; }
  const Tensor& operator[](int64_t index) const { return tensors_[index]; }

 private:
  Tensor* tensors_;
  int64_t size_;
};

inline DType dtype_of(int32_t code) {
  if (code == aoti_torch_dtype_bfloat16()) return DType::kBFloat16;
  if (code == aoti_torch_dtype_float32()) return DType::kFloat32;
  if (code == aoti_torch_dtype_float16()) return DType::kFloat16;
  return DType::kOther;
}

constexpr int64_t element_bytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

inline int32_t float32_code() { return aoti_torch_dtype_float32(); }
inline int32_t float64_code() { return aoti_torch_dtype_float64(); }

inline ShapeText shape_of(const Tensor& tensor) { return ShapeText(tensor.sizes(), tensor.dim()); }
inline DeviceText device_of(const Tensor& tensor) { return DeviceText(tensor.device_type(), tensor.device_index()); }

inline bool same_shape(const Tensor& a, const Tensor& b) {
  const int64_t dim = a.dim();
  return b.dim() == dim && memcmp(a.sizes(), b.sizes(), static_cast<size_t>(dim) * sizeof(int64_t)) == 0;
}

// An uninitialised tensor. If there is no memory for it, torch's own exception is raised.
Tensor empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
                     int32_t device_index);

// An uninitialised contiguous tensor on the device of `like`.
Tensor empty(const int64_t* sizes, int64_t dim, int32_t dtype, const Tensor& like);
inline Tensor empty_contiguous_like(const Tensor& like) {
  return empty(like.sizes(), like.dim(), like.dtype_code(), like);
}

// Returns another reference to the tensor.
Tensor another(const Tensor& tensor);

// Returns another reference to the tensor if it is contiguous, else a contiguous copy.
Tensor contiguous(const Tensor& tensor);

// A copy of the tensor with the strides of `like`, which must have the same sizes and no overlapping elements.
Tensor with_strides_of(const Tensor& tensor, const Tensor& like);

// Calls body(begin, end) for parts of [begin, end) on torch's own thread pool. `body` must not throw.
template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  auto call = [](int64_t from, int64_t to, void* context) { (*static_cast<const Body*>(context))(from, to); };
  PRECAST_TORCH(torch_parallel_for(begin, end, grain, call, const_cast<Body*>(&body)));
}

inline int64_t num_threads() {
  uint32_t threads = 1;
  PRECAST_TORCH(torch_get_num_threads(&threads));
  return threads;
}

// ---- boxing: from the dispatcher's stack to a plain function and back ----

using BoxedFunction = void (*)(StableIValue*, uint64_t, uint64_t);

// How one argument is stored on the stack. Taking it also takes its reference over.
template <class T>
struct Argument {
  static T take(StableIValue value) {
    static_assert(sizeof(T) <= sizeof(StableIValue), "not a type of the dispatcher's stack");
    T result;
    memcpy(&result, &value, sizeof(T));  // both supported architectures are little-endian
    return result;
  }
};
template <>
struct Argument<const Tensor&> {
  static TensorArgument take(StableIValue value) { return TensorArgument(reinterpret_cast<AtenTensorHandle>(value)); }
};
template <>
struct Argument<const Tensor*> {
  static OptionalTensor take(StableIValue value) { return OptionalTensor(reinterpret_cast<StableIValue*>(value)); }
};
template <>
struct Argument<const TensorList&> {
  static TensorList take(StableIValue value) { return TensorList(reinterpret_cast<StableListHandle>(value)); }
};

inline constexpr uint64_t result_count(void (*)()) { return 0; }
inline constexpr uint64_t result_count(Tensor (*)()) { return 1; }
inline constexpr uint64_t result_count(int64_t (*)()) { return 1; }
inline constexpr uint64_t result_count(bool (*)()) { return 1; }
inline constexpr uint64_t result_count(TensorPair (*)()) { return 2; }
inline constexpr uint64_t result_count(TensorTriple (*)()) { return 3; }

inline void put_result(StableIValue* stack, Tensor&& result) {
  stack[0] = reinterpret_cast<StableIValue>(result.release());
}
inline void put_result(StableIValue* stack, int64_t result) { stack[0] = static_cast<StableIValue>(result); }
inline void put_result(StableIValue* stack, bool result) { stack[0] = result ? 1 : 0; }
inline void put_result(StableIValue* stack, TensorPair&& result) {
  stack[0] = reinterpret_cast<StableIValue>(result.first.release());
  stack[1] = reinterpret_cast<StableIValue>(result.second.release());
}
inline void put_result(StableIValue* stack, TensorTriple&& result) {
  stack[0] = reinterpret_cast<StableIValue>(result.first.release());
  stack[1] = reinterpret_cast<StableIValue>(result.second.release());
  stack[2] = reinterpret_cast<StableIValue>(result.third.release());
}

[[noreturn]] void wrong_arity(uint64_t arguments, uint64_t taken, uint64_t results, uint64_t given)
    __attribute__((cold));

// Every tensor argument of every op is checked here, so that a kernel finds memory behind each. Ops check the lists
// that they take themselves, because a plan reads most of its tensors without a call of an op.
[[noreturn]] void no_memory(const char* op, size_t index, const Tensor& tensor) __attribute__((cold));
// Says so if the argument is the undefined tensor, which torch's parser makes of None, or throws the error again.
[[noreturn]] void no_tensor(const char* op, size_t index, const Tensor* tensor, const std::runtime_error& error)
    __attribute__((cold));

template <class Taken>
void require_memory(const char* op, size_t index, Taken& taken) {
  if constexpr (std::is_same_v<Taken, TensorArgument> || std::is_same_v<Taken, OptionalTensor>) {
    try {
      taken.keep_facts();
    } catch (const std::runtime_error& error) {
      no_tensor(op, index, taken.get(), error);
    }
    const Tensor* const tensor = taken.get();
    if (tensor != nullptr && __builtin_expect(!tensor->has_memory(), 0)) no_memory(op, index, *tensor);
  }
}

template <auto function>
struct Boxed;

template <class Result, class... Arguments, Result (*function)(Arguments...)>
struct Boxed<function> {
  static void call(const char* op, StableIValue* stack, uint64_t arguments, uint64_t results) {
    constexpr uint64_t kTaken = sizeof...(Arguments);
    constexpr uint64_t kGiven = result_count(static_cast<Result (*)()>(nullptr));
    if (arguments != kTaken || results != kGiven) wrong_arity(arguments, kTaken, results, kGiven);
    call(op, stack, std::make_index_sequence<kTaken>());
  }

 private:
  // The arguments are temporaries of the call, so they are freed after it even if it throws.
  template <size_t... index>
  static void call(const char* op, StableIValue* stack, std::index_sequence<index...>) {
    if constexpr (result_count(static_cast<Result (*)()>(nullptr)) == 0) {
      checked<index...>(op, Argument<Arguments>::take(stack[index])...);
    } else {
      put_result(stack, checked<index...>(op, Argument<Arguments>::take(stack[index])...));
    }
  }

  template <size_t... index, class... Taken>
  static Result checked(const char* op, Taken&&... taken) {
    (require_memory(op, index, taken), ...);
    return function(taken...);
  }
};

// ---- registration ----

struct Implementation {
  const char* op;
  const char* key;  // "CPU" or "CUDA"
  BoxedFunction function;
};

}  // namespace precast

#define PRECAST_IMPLEMENTATION(op, key, function)                                       \
  ::precast::Implementation {                                                           \
    op, key, [](::precast::StableIValue* stack, uint64_t arguments, uint64_t results) { \
      ::precast::Boxed<&function>::call(op, stack, arguments, results);                 \
    }                                                                                   \
  }

// The linker collects the pointers to all families of a library in one section. The list needs no code that runs at
// load.
#define PRECAST_FAMILY(name, implementations, kernels)                                                              \
  static const ::precast::Family precast_family_##name = {                                                          \
      #name, implementations, static_cast<int64_t>(sizeof(implementations) / sizeof(::precast::Implementation)),    \
      kernels};                                                                                                     \
  __attribute__((used, section("precast_families"))) static const ::precast::Family* const precast_pointer_##name = \
      &precast_family_##name
