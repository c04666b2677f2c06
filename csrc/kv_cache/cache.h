// Checks of keys, values and caches, and the place of a token in a cache. No check writes anything.
#pragma once

#include "../host/apart.h"
#include "../host/rows.h"
#include "../rotary/rotate.h"
#include "args.h"

namespace precast::kv_cache {

// The tensors that every call has, in the order of the schemas.
struct Tensors {
  const Tensor& key;
  const Tensor& value;
  const Tensor& key_cache;
  const Tensor& value_cache;
  const Tensor& slot_mapping;
  bool only_keys = false;  // value and value_cache are then key and key_cache, and are not used
};

// Where a value cache keeps heads, positions and elements: the numbers of its dimensions.
struct ValueDims {
  int head, position, element;
};

// A checked call.
struct Call {
  int64_t tokens;
  int64_t heads;
  int64_t width;        // elements of a head
  int64_t key_piece;    // contiguous elements of a head in the key cache: all, or x
  int64_t value_piece;  // in the value cache: all, or one
  int64_t block_size;
  int64_t slots;
  DType dtype;
  int32_t device;
  bool paged;
  bool only_keys;
  ValueDims value_dims;

  int64_t element_bytes() const { return dtype == DType::kFloat32 ? 4 : 2; }
  bool is_nothing() const { return tokens == 0 || heads == 0 || width == 0; }
};

inline bool has_shape(const Tensor& tensor, int64_t a, int64_t b, int64_t c, int64_t d) {
  if (tensor.dim() != 4) return false;
  const int64_t* sizes = tensor.sizes();
  return sizes[0] == a && sizes[1] == b && sizes[2] == c && sizes[3] == d;
}

// Finds the dimensions of a paged value cache: (blocks, heads, block_size, width) or (blocks, heads, width,
// block_size), and the first if both fit. Returns false if neither does.
inline bool find_value_dims(const Tensor& cache, int64_t blocks, Call* call) {
  call->value_dims = {1, 2, 3};
  if (has_shape(cache, blocks, call->heads, call->block_size, call->width)) return true;
  call->value_dims = {1, 3, 2};
  return has_shape(cache, blocks, call->heads, call->width, call->block_size);
}

// Reads the shapes. Returns false if they do not fit together.
inline bool read_shapes(const Tensors& t, Call* call) {
  const int64_t dim = t.key_cache.dim();
  if (t.key.dim() != 3 || !same_shape(t.key, t.value) || (dim != 4 && dim != 5)) return false;
  const int64_t *sizes = t.key.sizes(), *cache = t.key_cache.sizes();
  call->tokens = sizes[0];
  call->heads = sizes[1];
  call->width = sizes[2];
  call->paged = dim == 5;
  call->key_piece = call->paged ? cache[4] : call->width;
  call->value_piece = call->width;
  call->block_size = cache[call->paged ? 3 : 1];
  call->slots = cache[0] * call->block_size;
  call->only_keys = t.only_keys;
  if (!call->paged) {
    call->value_dims = {2, 1, 3};
    return has_shape(t.key_cache, cache[0], call->block_size, call->heads, call->width) &&
           same_shape(t.key_cache, t.value_cache);
  }
  if (cache[1] != call->heads || cache[2] * call->key_piece != call->width) return false;
  if (t.only_keys) return true;
  if (!find_value_dims(t.value_cache, cache[0], call)) return false;
  if (t.value_cache.strides()[call->value_dims.element] != 1) call->value_piece = 1;
  return true;
}

// A paged value cache may have any strides, because its elements can be written one by one.
inline bool is_writable(const Tensor& cache, bool any_strides) {
  return (any_strides || last_is_contiguous(cache)) && is_free_of_overlap(cache);
}

__attribute__((noinline)) inline Call check_call(const char* op, const Tensors& t) {
  Call call;
  call.dtype = dtype_of(t.key.dtype_code());
  call.device = t.key.device_index();
  PRECAST_CHECK(call.dtype != DType::kOther, "%s: key is %s; needed float32, float16 or bfloat16", op,
                dtype_name(t.key.dtype_code()));
  check_kind(op, {"value", t.value}, t.key, "key");
  const Named caches[] = {{"key_cache", t.key_cache}, {"value_cache", t.value_cache}};
  for (const Named& cache : caches) {
    PRECAST_CHECK(cache.tensor.dtype_code() == t.key.dtype_code(),
                  "%s: %s is %s and key is %s; needed one dtype (there is no kernel for caches of 8 bits)", op,
                  cache.name, dtype_name(cache.tensor.dtype_code()), dtype_name(t.key.dtype_code()));
    check_device(op, cache, t.key, "key");
  }
  PRECAST_CHECK(read_shapes(t, &call),
                "%s: key has shape %s, value %s, key_cache %s and value_cache %s; needed (tokens, heads, width) twice, "
                "and (blocks, block_size, heads, width) twice, or (blocks, heads, width / x, block_size, x) and "
                "(blocks, heads, block_size, width) or (blocks, heads, width, block_size)",
                op, shape_of(t.key).text, t.only_keys ? "None" : shape_of(t.value).text, shape_of(t.key_cache).text,
                t.only_keys ? "None" : shape_of(t.value_cache).text);
  PRECAST_CHECK(t.slot_mapping.dtype_code() == aoti_torch_dtype_int64(), "%s: slot_mapping is %s; needed int64", op,
                dtype_name(t.slot_mapping.dtype_code()));
  check_device(op, {"slot_mapping", t.slot_mapping}, t.key, "key");
  PRECAST_CHECK(t.slot_mapping.dim() == 1 && t.slot_mapping.sizes()[0] == call.tokens,
                "%s: slot_mapping has shape %s; needed (%lld,), a slot for each token", op,
                shape_of(t.slot_mapping).text, printable(call.tokens));
  for (const Named& cache : caches) {
    PRECAST_CHECK(is_writable(cache.tensor, call.paged && &cache == &caches[1]),
                  "%s: %s is written in place and has shape %s with strides %s; needed a contiguous last dimension, "
                  "and no two elements in one place",
                  op, cache.name, shape_of(cache.tensor).text,
                  ShapeText(cache.tensor.strides(), cache.tensor.dim()).text);
  }
  PRECAST_CHECK(t.only_keys || t.key_cache.data() == nullptr || t.key_cache.data() != t.value_cache.data(),
                "%s: key_cache and value_cache begin at one place in memory; needed two caches", op);
  for (const Named& cache : caches) {
    check_apart(op, {"key", t.key}, cache);
    check_apart(op, {"value", t.value}, cache);
    check_apart(op, {"slot_mapping", t.slot_mapping}, cache);
  }
  check_apart(op, {"value_cache", t.value_cache}, caches[0]);
  return call;
}

// ---- tensors as the kernels see them, with strides in bytes ----

inline Heads heads_of(const Call& call, const rotary::ReadHeads& heads) {
  const int64_t bytes = call.element_bytes();
  return {heads.data(), heads.strides().token * bytes, heads.strides().head * bytes};
}

// The two caches and the slots, in the form that both devices use.
struct Target {
  Target(const Call& call, const Tensors& t) {
    const int64_t *key = t.key_cache.strides(), *value = t.value_cache.strides(), bytes = call.element_bytes();
    char* keys = static_cast<char*>(t.key_cache.mutable_data());
    key_cache = call.paged ? Cache{keys, key[0] * bytes, key[3] * bytes, key[1] * bytes, key[2] * bytes}
                           : Cache{keys, key[0] * bytes, key[1] * bytes, key[2] * bytes, 0};
    const ValueDims& dims = call.value_dims;
    value_cache = call.only_keys ? Cache{}
                                 : Cache{static_cast<char*>(t.value_cache.mutable_data()), value[0] * bytes,
                                         value[dims.position] * bytes, value[dims.head] * bytes,
                                         call.value_piece == call.width ? 0 : value[dims.element] * bytes};
    slots = {static_cast<const long long*>(t.slot_mapping.data()), t.slot_mapping.strides()[0], call.slots,
             call.block_size};
  }

  // Not zero if something is not aligned to 16 bytes. The lowest set bit is the alignment.
  uint64_t misaligned(const Call& call) const {
    uint64_t bits = static_cast<uint64_t>((call.key_piece | call.value_piece) * call.element_bytes());
    for (const Cache& cache : {key_cache, value_cache}) {
      bits |= misalignment(cache.data, cache.block | cache.position | cache.head | cache.piece);
    }
    return bits & 15;
  }

  Cache key_cache;
  Cache value_cache;
  Slots slots;
};

inline uint64_t misaligned(const Heads& heads) { return misalignment(heads.data, heads.token | heads.head); }

}  // namespace precast::kv_cache
