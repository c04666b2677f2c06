// Python functions that call a kernel without torch's dispatcher. A small kernel takes a microsecond on the host; the
// way through the bindings of an op, its schema and its boxed arguments takes two more, and twice that for a gradient.
//
// A function made here first proves that the dispatcher would have done nothing: every tensor is a plain torch.Tensor
// or Parameter of one device, this thread has no mode, transform, tracer or profiler, nobody else has registered a
// kernel for the op, and each number has the schema's type. If a gradient is wanted, it calls the function that records
// one. In any other case, and if the kernel raises, it calls the function that Python would have called without us.
// Kernels check everything before they write, so the second call raises the error that every other caller gets.
//
// As in autograd.h and kind.h, the functions of Python and torch are looked up in the libraries that this process has
// loaded. A torch or a Python that lacks one has no such functions, and works without them.
#include <malloc.h>

#include <atomic>
#include <exception>
#include <new>

#include "kind.h"
#include "lock.h"

extern "C" __attribute__((visibility("hidden"))) const precast::Family* const __start_precast_families[];
extern "C" __attribute__((visibility("hidden"))) const precast::Family* const __stop_precast_families[];

namespace precast {
namespace {

using Object = void;  // a PyObject

// PyMethodDef of the stable ABI, and METH_FASTCALL.
struct Method {
  const char* name;
  Object* (*function)(Object* self, Object* const* arguments, intptr_t count);
  int flags;
  const char* doc;
};
constexpr int kFastCall = 0x80;

// c10::impl::PODLocalDispatchKeySet: how the keys of a thread differ from their defaults.
struct ThreadKeys {
  uint64_t included, excluded;
};

struct Functions {
  Object* (*make_function)(Method*, Object* self, Object* module);
  Object* (*make_capsule)(void*, const char*, void (*)(Object*));
  void* (*pointer_of)(Object* capsule, const char*);
  Object* (*call)(Object*, Object* const*, size_t, Object*);
  Object* (*make_tuple)(intptr_t);
  int (*set_item)(Object* tuple, intptr_t, Object*);
  double (*double_of)(Object*);
  long long (*int_of)(Object*, int* overflow);
  void (*keep)(Object*);
  void (*drop)(Object*);
  void* (*unlock)();
  void (*lock_again)(void*);
  int (*ensure_lock)();
  void (*release_lock)(int);
  const Object *float_type, *int_type, *bool_type, *none, *yes;
  Object* (*wrap)(AtenTensorHandle);
  const Object* const* parameter_class;
  bool (*observed)();
  bool (*function_mode)();
  bool (*records)();
  bool (*requires_grad)(const void* impl);
};

template <class Value>
bool resolve(const TorchName& one, Value& value) {
  value = reinterpret_cast<Value>(find_loaded(one));
  return value != nullptr;
}

// A name of Python.
template <class Value>
bool resolve(const char* name, Value& value) {
  return resolve(TorchName{nullptr, name}, value);
}

bool find(Functions& f) {
  return resolve("PyCFunction_NewEx", f.make_function) && resolve("PyCapsule_New", f.make_capsule) &&
         resolve("PyCapsule_GetPointer", f.pointer_of) && resolve("PyObject_Vectorcall", f.call) &&
         resolve("PyTuple_New", f.make_tuple) && resolve("PyTuple_SetItem", f.set_item) &&
         resolve("PyFloat_AsDouble", f.double_of) && resolve("PyLong_AsLongLongAndOverflow", f.int_of) &&
         resolve("Py_IncRef", f.keep) && resolve("Py_DecRef", f.drop) && resolve("PyEval_SaveThread", f.unlock) &&
         resolve("PyEval_RestoreThread", f.lock_again) && resolve("PyGILState_Ensure", f.ensure_lock) &&
         resolve("PyGILState_Release", f.release_lock) && resolve("PyFloat_Type", f.float_type) &&
         resolve("PyLong_Type", f.int_type) && resolve("PyBool_Type", f.bool_type) &&
         resolve("_Py_NoneStruct", f.none) && resolve("_Py_TrueStruct", f.yes) && resolve(kWrap, f.wrap) &&
         resolve(kParameterClass, f.parameter_class) && resolve(kObserved, f.observed) &&
         resolve(kFunctionMode, f.function_mode) && resolve(kRecords, f.records) &&
         resolve(kRequiresGrad, f.requires_grad);
}

// The keys of this thread, which stay at one address while it lives. Null if this torch has no such variable.
const ThreadKeys* thread_keys() {
  static thread_local const ThreadKeys* keys = nullptr;
  if (__builtin_expect(keys == nullptr, 0)) {
    keys = static_cast<const ThreadKeys*>(find_loaded(kThreadKeys));
  }
  return keys;
}

// What is found once: functions, and where a Python object and a tensor have what we read.
struct Runtime {
  Functions functions;
  KindLayout layout;
};

// Null if anything is missing.
const Runtime* runtime() {
  static Mutex mutex;
  static Runtime found;
  static int state = 0;  // 1: found; -1: something is missing
  const Lock lock(mutex);
  if (state == 0) {
    state = -1;
    AtenTensorHandle made = nullptr;
    if (find(found.functions) && thread_keys() != nullptr &&
        aoti_torch_empty_strided(0, nullptr, nullptr, float32_code(), aoti_torch_device_type_cpu(), 0, &made) == 0) {
      const Tensor tensor(made);
      const KindLayout* const layout = kind_layout(tensor);
      if (layout != nullptr) {
        found.layout = *layout;
        state = 1;
      }
    }
  }
  return state == 1 ? &found : nullptr;
}

constexpr int kMostArguments = 16;
enum Device : int { kCpu = 0, kCuda = 1, kDevices = 2 };

uintptr_t word(const void* at, int offset) {
  uintptr_t value;
  memcpy(&value, static_cast<const char*>(at) + offset, sizeof(value));
  return value;
}

// What the caller says about a function; Python fills it through ctypes.
struct Description {
  const char* op;
  const char* types;  // one for each argument. t: Tensor, o: Tensor?, d: float, i: int, b: bool
  int32_t results;    // all of them tensors
  int32_t devices;    // bit 0: the CPU kernels are registered; bit 1: the CUDA kernels
  uint64_t written;   // bit i: the kernel writes argument i
  uint64_t plain;     // the keys that a plain tensor can have
  uint64_t included;  // the keys by which a thread may differ from the default
  uint64_t excluded;
  uint64_t autograd;  // without one of these keys, no gradient is recorded
  Object* record;     // called with `first` and the arguments if a gradient is wanted; null: `otherwise` is called
  Object* first;
  Object* otherwise;
  const uint64_t* registered;  // the dispatcher's count of the op's kernels, which is `expected` if all are ours
  uint64_t expected;
  Object* dispatched;  // called if it is another
};

// One function. It lives as long as the process.
class Direct {
 public:
  Direct(const Runtime& runtime, const Description& given, const BoxedFunction* kernels)
      : f_(runtime.functions),
        layout_(runtime.layout),
        given_(given),
        kernels_{kernels[kCpu], kernels[kCuda]},
        count_(static_cast<int>(strlen(given.types))),
        bump_(version_function()),
        possible_(given.written == 0 || bump_ != nullptr) {
    memcpy(types_, given.types, static_cast<size_t>(count_) + 1);
    method_ = {"direct", &Direct::called, kFastCall, "The op's kernel, without torch's dispatcher."};
  }

  // A new Python function. The caller holds Python's lock.
  Object* make() {
    for (Object* const object : {given_.record, given_.first, given_.otherwise, given_.dispatched}) {
      if (object != nullptr) f_.keep(object);
    }
    self_functions = &f_;
    Object* const self = f_.make_capsule(this, nullptr, nullptr);
    if (self == nullptr) return nullptr;
    Object* const function = f_.make_function(&method_, self, nullptr);
    f_.drop(self);
    return function;
  }

 private:
  static Object* called(Object* self, Object* const* objects, intptr_t count) {
    return static_cast<const Direct*>(self_functions->pointer_of(self, nullptr))->call(objects, count);
  }

  Object* call(Object* const* objects, intptr_t count) const {
    if (__builtin_expect(*given_.registered != given_.expected, 0))
      return f_.call(given_.dispatched, objects, static_cast<size_t>(count), nullptr);
    bool wanted = false;
    int device = -1;
    if (count == count_ && possible_ && thread_is_plain(wanted) && accepts(objects, wanted, device)) {
      StableIValue stack[kMostArguments] = {};
      if (!wanted) {
        if (compute(objects, device, stack)) {
          if (given_.written != 0) count_changes(objects);
          return results_of(stack);
        }
      } else if (given_.record != nullptr) {
        Object* with_first[kMostArguments + 1] = {given_.first};
        memcpy(with_first + 1, objects, static_cast<size_t>(count) * sizeof(Object*));
        return f_.call(given_.record, with_first, static_cast<size_t>(count) + 1, nullptr);
      }
    }
    return f_.call(given_.otherwise, objects, static_cast<size_t>(count), nullptr);
  }

  // Whether nothing in this thread observes or changes a call. `records`: whether it records gradients.
  bool thread_is_plain(bool& records) const {
    const ThreadKeys& keys = *thread_keys();
    if (((keys.included & ~given_.included) | (keys.excluded & ~given_.excluded)) != 0) return false;
    if (f_.observed() || f_.function_mode()) return false;
    records = (keys.excluded & given_.autograd) == 0 && f_.records();
    return true;
  }

  // Whether the dispatcher would hand exactly these arguments to the kernel of `device`. `wanted`: whether gradients
  // are recorded; becomes whether one is wanted.
  bool accepts(Object* const* objects, bool& wanted, int& device) const {
    const bool records = wanted;
    // Outside inference mode, torch refuses to write an inference tensor: one that lacks these keys.
    const uint64_t counted = thread_keys()->included == 0 ? given_.included : 0;
    wanted = false;
    for (int i = 0; i < count_; ++i) {
      Object* const object = objects[i];
      const auto type = reinterpret_cast<const Object*>(word(object, layout_.type));
      if (types_[i] == 'd' || types_[i] == 'i' || types_[i] == 'b') {
        if (type != (types_[i] == 'd' ? f_.float_type : types_[i] == 'i' ? f_.int_type : f_.bool_type)) return false;
        continue;
      }
      if (types_[i] == 'o' && object == f_.none) continue;
      if (type != layout_.tensor_class && type != *f_.parameter_class) return false;
      const auto impl = reinterpret_cast<const void*>(word(object, layout_.impl));
      // The tensor names the object that stands for it, in the word whose lowest bit is a flag up to torch 2.9.
      if (impl == nullptr || (word(impl, layout_.object) & ~uintptr_t{1}) != reinterpret_cast<uintptr_t>(object))
        return false;
      const uint64_t keys = word(impl, layout_.keys);
      if ((keys & ~given_.plain) != 0) return false;
      if ((given_.written >> i & 1) != 0 && (keys & counted) != counted) return false;
      const int here = device_of(object);
      if (here < 0 || (device >= 0 && device != here)) return false;
      device = here;
      wanted = wanted || (records && f_.requires_grad(impl));
    }
    return device >= 0 && kernels_[device] != nullptr;
  }

  int device_of(Object* object) const {
    int32_t type = -1;
    if (aoti_torch_get_device_type(handle_in(object), &type) != 0) return -1;
    return type == aoti_torch_device_type_cpu() ? kCpu : type == aoti_torch_device_type_cuda() ? kCuda : -1;
  }

  // A Python tensor contains an at::Tensor, and a handle is the address of one.
  AtenTensorHandle handle_in(Object* object) const {
    return reinterpret_cast<AtenTensorHandle>(static_cast<char*>(object) + layout_.impl);
  }

  // Leaves the kernel's results on the stack. False if it raises; then it has written nothing.
  bool compute(Object* const* objects, int device, StableIValue* stack) const {
    int taken = 0;
    bool done = false;
    try {
      for (; taken < count_; ++taken) {
        if (!take(objects[taken], taken, stack[taken])) break;
      }
      if (taken == count_) {
        const Unlocked unlocked(f_);
        taken = 0;  // the kernel takes all references, even if it raises
        kernels_[device](stack, static_cast<uint64_t>(count_), static_cast<uint64_t>(given_.results));
        done = true;
      }
    } catch (...) {  // `otherwise` raises it again, as the error that every caller gets
    }
    for (int i = 0; i < taken; ++i) give_back(i, stack[i]);
    return done;
  }

  // Puts one argument on the stack. False if it does not fit.
  bool take(Object* object, int index, StableIValue& value) const {
    if (types_[index] == 'd') {
      const double number = f_.double_of(object);
      memcpy(&value, &number, sizeof(value));
    } else if (types_[index] == 'i') {
      int overflow = 0;
      value = static_cast<StableIValue>(f_.int_of(object, &overflow));
      return overflow == 0;
    } else if (types_[index] == 'b') {
      value = object == f_.yes ? 1 : 0;
    } else if (types_[index] == 't' || object != f_.none) {
      AtenTensorHandle same = nullptr;
      torch_check(aoti_torch_new_tensor_handle(handle_in(object), &same), "new_tensor_handle");
      value = reinterpret_cast<StableIValue>(same);
      if (types_[index] == 'o') value = reinterpret_cast<StableIValue>(new StableIValue(value));
    }
    return true;
  }

  // Raises the version counters of written tensors after the kernel, as torch does: a refused call changes nothing, and
  // a mode that saw the call compares them with the counters from before it.
  void count_changes(Object* const* objects) const {
    for (int i = 0; i < count_; ++i) {
      if ((given_.written >> i & 1) != 0 && objects[i] != f_.none) bump_(handle_in(objects[i]));
    }
  }

  void give_back(int index, StableIValue value) const {
    if (types_[index] == 't') Tensor(reinterpret_cast<AtenTensorHandle>(value));
    if (types_[index] == 'o') OptionalTensor(reinterpret_cast<StableIValue*>(value));
  }

  // Nothing: True. One tensor: that. More: a tuple. Null with Python's error if there is no memory for them.
  Object* results_of(StableIValue* stack) const {
    if (given_.results == 0) {
      f_.keep(const_cast<Object*>(f_.yes));
      return const_cast<Object*>(f_.yes);
    }
    if (given_.results == 1) return f_.wrap(Tensor(reinterpret_cast<AtenTensorHandle>(stack[0])).get());
    Object* const tuple = f_.make_tuple(given_.results);
    for (int i = 0; i < given_.results; ++i) {
      const Tensor tensor(reinterpret_cast<AtenTensorHandle>(stack[i]));
      if (tuple != nullptr) f_.set_item(tuple, i, f_.wrap(tensor.get()));
    }
    return tuple;
  }

  // Other threads run Python while a kernel computes.
  class Unlocked {
   public:
    explicit Unlocked(const Functions& f) : f_(f), state_(f.unlock()) {}
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;
    ~Unlocked() { f_.lock_again(state_); }

   private:
    const Functions& f_;
    void* state_;
  };

  static const Functions* self_functions;

  const Functions& f_;
  const KindLayout layout_;
  const Description given_;
  const BoxedFunction kernels_[kDevices];
  const int count_;
  const VersionFunction bump_;
  const bool possible_;
  char types_[kMostArguments + 1];
  Method method_;
};

const Functions* Direct::self_functions = nullptr;

BoxedFunction kernel_of(const char* op, const char* key) {
  for (auto family = __start_precast_families; family != __stop_precast_families; ++family) {
    for (int64_t i = 0; i < (*family)->implementation_count; ++i) {
      const Implementation& one = (*family)->implementations[i];
      if (strcmp(one.op, op) == 0 && strcmp(one.key, key) == 0) return one.function;
    }
  }
  return nullptr;
}

}  // namespace
}  // namespace precast

// What torch's dispatcher keeps about an op, and its size in bytes: a c10::Dispatcher::OperatorDef, in a node of a
// list. Null if this torch lacks a function. The caller finds the count of kernels in it.
PRECAST_EXPORT const void* precast_operator(const char* name, uint64_t* bytes) {
  struct Handle {  // c10::OperatorHandle; its destructor, which does nothing, makes it a result in memory
    const char* found;
    void* place;
    ~Handle() {}
  };
  void* (*dispatcher)();
  Handle (*find)(void*, const char* name, const char* overload);
  if (!precast::resolve(precast::kDispatcher, dispatcher) || !precast::resolve(precast::kFindSchema, find) ||
      precast::find_loaded(precast::kEndOfHandle) == nullptr)
    return nullptr;
  try {
    const Handle handle = find(dispatcher(), name, "");
    constexpr size_t kHead = 2 * sizeof(void*);  // of the list's node
    const size_t size = malloc_usable_size(const_cast<char*>(handle.found) - kHead);
    *bytes = size > kHead ? size - kHead : 0;
    return handle.found;
  } catch (...) {  // no such op
    return nullptr;
  }
}

// How the keys of this thread differ from the default: included and excluded ones. Returns 1 if this torch or Python
// lacks something that a direct function needs.
PRECAST_EXPORT int precast_thread_keys(uint64_t* keys) {
  if (precast::runtime() == nullptr) return 1;
  const precast::ThreadKeys* const found = precast::thread_keys();
  keys[0] = found->included;
  keys[1] = found->excluded;
  return 0;
}

// Makes the Python function of one op. Null if this torch or Python lacks something, or the op has too many arguments.
PRECAST_EXPORT void* precast_direct(const precast::Description* given) {
  const precast::Runtime* const runtime = precast::runtime();
  if (runtime == nullptr || strlen(given->types) > precast::kMostArguments) return nullptr;
  precast::BoxedFunction kernels[precast::kDevices] = {};
  if ((given->devices & 1) != 0) kernels[precast::kCpu] = precast::kernel_of(given->op, "CPU");
  if ((given->devices & 2) != 0) kernels[precast::kCuda] = precast::kernel_of(given->op, "CUDA");
  const precast::Functions& f = runtime->functions;
  const int locked = f.ensure_lock();
  void* const made = (new precast::Direct(*runtime, *given, kernels))->make();
  f.release_lock(locked);
  return made;
}
