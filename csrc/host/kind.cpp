// Finds the offsets that kind.h reads: looks for values that torch itself writes. Null unless each one is found once.
#include "kind.h"

#include <atomic>

namespace precast {
namespace {

constexpr int kWord = static_cast<int>(sizeof(uintptr_t));

// c10::Device, which is passed by value.
struct Device {
  int8_t type, index;
};

uintptr_t word_at(const void* begin, int offset) {
  uintptr_t value;
  memcpy(&value, static_cast<const char*>(begin) + offset, sizeof(value));
  return value;
}

// The only offset in `size` bytes that holds `value`, ignoring the bits of `ignored`. -1 if there is none or more than
// one.
int only_place_of(uintptr_t value, uintptr_t ignored, const void* begin, int size) {
  int found = -1;
  for (int at = 0; at + kWord <= size; at += kWord) {
    if ((word_at(begin, at) & ~ignored) != value) continue;
    if (found >= 0) return -1;
    found = at;
  }
  return found;
}

// Lets torch set the keys of a backend in a zeroed buffer larger than a tensor, and looks for the word that changes. A
// tensor of that backend must have the same keys.
int place_of_keys(const void* impl) {
  const auto set_backend = reinterpret_cast<void (*)(void*, Device)>(find_loaded(kSetBackend));
  if (set_backend == nullptr) return -1;
  alignas(16) unsigned char empty[1024] = {};
  set_backend(empty, {static_cast<int8_t>(aoti_torch_device_type_cpu()), 0});
  int found = -1;
  for (int at = 0; at < static_cast<int>(sizeof(empty)); at += kWord) {
    if (word_at(empty, at) == 0) continue;
    if (found >= 0) return -1;
    found = at;
  }
  if (found < 0) return -1;
  const uintptr_t keys = word_at(empty, found);
  return (word_at(impl, found) & keys) == keys ? found : -1;
}

// Finds the tensor's Python object, and in that object the class and the tensor.
bool find_object(const Tensor& tensor, KindLayout& layout) {
  using Wrap = void* (*)(AtenTensorHandle);
  const auto wrap = reinterpret_cast<Wrap>(find_loaded(kWrap));
  const auto tensor_class = static_cast<void* const*>(find_loaded(kTensorClass));
  const auto take_lock = reinterpret_cast<int (*)()>(find_loaded(nullptr, "PyGILState_Ensure"));
  const auto release_lock = reinterpret_cast<void (*)(int)>(find_loaded(nullptr, "PyGILState_Release"));
  const auto drop = reinterpret_cast<void (*)(void*)>(find_loaded(nullptr, "Py_DecRef"));
  if (wrap == nullptr || tensor_class == nullptr || take_lock == nullptr || release_lock == nullptr || drop == nullptr)
    return false;
  const int locked = take_lock();
  void* const object = wrap(tensor.get());
  if (object != nullptr) {
    constexpr int kHead = 4 * kWord;  // of any Python object: reference counts and class; a tensor's object is larger
    // Search only before the keys: in the smallest version no members follow them.
    layout.object = only_place_of(reinterpret_cast<uintptr_t>(object), 1, impl_of(tensor.get()), layout.keys);
    layout.type = only_place_of(reinterpret_cast<uintptr_t>(*tensor_class), 0, object, kHead);
    layout.tensor_class = *tensor_class;
    // After the head. In older versions a flag comes first, which says whether the object owns the tensor.
    layout.impl = only_place_of(reinterpret_cast<uintptr_t>(impl_of(tensor.get())), 0, object, kHead + 2 * kWord);
    drop(object);
  }
  release_lock(locked);
  return object != nullptr && layout.object >= 0 && layout.type >= 0 && layout.impl >= 0;
}

}  // namespace

const KindLayout* kind_layout(const Tensor& tensor) {
  static const KindLayout unknown = {};
  // Not a static with a guard: a thread that waits for Python's lock must not hold another lock.
  static std::atomic<const KindLayout*> found{nullptr};
  const KindLayout* layout = found.load(std::memory_order_acquire);
  if (layout == nullptr) {
    KindLayout made = {};
    made.keys = place_of_keys(impl_of(tensor.get()));
    layout = made.keys >= 0 && find_object(tensor, made) ? new KindLayout(made) : &unknown;
    const KindLayout* other = nullptr;
    if (!found.compare_exchange_strong(other, layout, std::memory_order_acq_rel)) {
      if (layout != &unknown) delete layout;
      layout = other;
    }
  }
  return layout == &unknown ? nullptr : layout;
}

}  // namespace precast
