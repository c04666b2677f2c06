// Checks of the op's tensors. No check writes anything.
#pragma once

#include "../host/rows.h"
#include "args.h"

namespace precast::decode_attention {

constexpr const char* kOp = "paged_decode_attention";

struct Tensors {
  const Tensor& query;
  const Tensor& key_cache;
  const Tensor& value_cache;
  const Tensor& block_tables;
  const Tensor& lengths;
  const Tensor* slopes;
  const Tensor* sinks;
  const Tensor* key_scale;
  const Tensor* value_scale;
};

inline bool is_served(int64_t width) {
  for (const int64_t one : {64, 80, 96, 128, 192, 256}) {
    if (width == one) return true;
  }
  return false;
}

// Returns the type of a cache, or -1.
inline int cache_type(int32_t code) {
  if (code == aoti_torch_dtype_float8_e4m3fn()) return kCacheE4M3;
  if (code == aoti_torch_dtype_float8_e5m2()) return kCacheE5M2;
  const DType dtype = dtype_of(code);
  return dtype == DType::kOther ? -1 : static_cast<int>(dtype);
}

constexpr int64_t cache_bytes(int type) { return type == kCacheFloat32 ? 4 : type >= kCacheE4M3 ? 1 : 2; }

// Where a value cache keeps heads, positions and elements: the numbers of its dimensions.
struct ValueDims {
  int head, position, element;
};

// The last dimension has positions only if the shape leaves no other meaning.
inline ValueDims value_dims(const Tensors& t) {
  if (t.key_cache.dim() == 4) return {2, 1, 3};
  const int64_t *value = t.value_cache.sizes(), block_size = t.key_cache.sizes()[3];
  return value[2] != block_size && value[3] == block_size ? ValueDims{1, 3, 2} : ValueDims{1, 2, 3};
}

inline bool read_shapes(const Tensors& t, Attention* call) {
  const int64_t dim = t.key_cache.dim();
  if (t.query.dim() != 4 || t.value_cache.dim() != 4 || (dim != 4 && dim != 5)) return false;
  const int64_t *query = t.query.sizes(), *key = t.key_cache.sizes(), *value = t.value_cache.sizes();
  const bool pieces = dim == 5;
  call->blocks = key[0];
  call->kv_heads = static_cast<int>(key[pieces ? 1 : 2]);
  call->block_size = static_cast<int>(key[pieces ? 3 : 1]);
  call->key_piece_width = static_cast<int>(pieces ? key[4] : key[3]);
  const ValueDims dims = value_dims(t);
  call->value_width = static_cast<int>(value[dims.element]);
  call->value_piece_width = t.value_cache.strides()[dims.element] == 1 ? call->value_width : 1;
  return value[0] == key[0] && value[dims.head] == call->kv_heads && value[dims.position] == call->block_size &&
         query[3] == (pieces ? key[2] * key[4] : key[3]);
}

// Checks a float32 vector on the device of query, with `count` elements, or with one if `or_one` is set.
inline void check_numbers(const char* name, const Tensor* numbers, int64_t count, bool or_one, const Tensor& query) {
  if (numbers == nullptr) return;
  PRECAST_CHECK(numbers->dtype_code() == float32_code(), "%s: %s is %s; needed float32", kOp, name,
                dtype_name(numbers->dtype_code()));
  check_device(kOp, {name, *numbers}, query, "query");
  const bool fits = numbers->dim() == 1 && (numbers->sizes()[0] == count || (or_one && numbers->sizes()[0] == 1));
  PRECAST_CHECK(fits && numbers->is_contiguous(), "%s: %s has shape %s; needed (%lld,)%s, contiguous", kOp, name,
                shape_of(*numbers).text, printable(count), or_one ? " or (1,)" : "");
}

__attribute__((noinline)) inline void check_caches(const Tensors& t, Attention* call) {
  const int32_t key = t.key_cache.dtype_code(), query = t.query.dtype_code();
  call->dtype = static_cast<int>(dtype_of(query));
  call->cache_dtype = cache_type(key);
  PRECAST_CHECK(dtype_of(query) != DType::kOther, "%s: query is %s; needed float32, float16 or bfloat16", kOp,
                dtype_name(query));
  PRECAST_CHECK(call->cache_dtype >= 0 && (key == query || call->cache_dtype >= kCacheE4M3),
                "%s: key_cache is %s and query is %s; needed the dtype of query, float8_e4m3fn or float8_e5m2", kOp,
                dtype_name(key), dtype_name(query));
  check_kind(kOp, {"value_cache", t.value_cache}, t.key_cache, "key_cache");
  check_device(kOp, {"key_cache", t.key_cache}, t.query, "query");
  PRECAST_CHECK(
      read_shapes(t, call),
      "%s: query has shape %s, key_cache %s and value_cache %s; needed (sequences, queries, heads, width), and "
      "(blocks, block_size, kv_heads, width) twice, or (blocks, kv_heads, width / x, block_size, x) and "
      "(blocks, kv_heads, block_size, width) or (blocks, kv_heads, width, block_size)",
      kOp, shape_of(t.query).text, shape_of(t.key_cache).text, shape_of(t.value_cache).text);
  const int64_t *sizes = t.query.sizes(), width = call->value_width;
  call->sequences = static_cast<int>(sizes[0]);
  call->queries = static_cast<int>(sizes[1]);
  call->heads = static_cast<int>(sizes[2]);
  call->key_width = static_cast<int>(sizes[3]);
  PRECAST_CHECK(is_served(sizes[3]) && is_served(width),
                "%s: heads have %lld elements in keys and %lld in values; needed 64, 80, 96, 128, 192 or 256", kOp,
                printable(sizes[3]), printable(width));
  PRECAST_CHECK(sizes[1] >= 1 && sizes[1] <= kMostQueries, "%s: query has %lld queries for a sequence; needed 1 to %d",
                kOp, printable(sizes[1]), kMostQueries);
  PRECAST_CHECK(call->kv_heads >= 1 && call->heads >= 1 && call->heads % call->kv_heads == 0,
                "%s: query has %d heads and the caches have %d; needed a multiple", kOp, call->heads, call->kv_heads);
  PRECAST_CHECK(sizes[0] * sizes[1] * sizes[2] < int64_t{1} << 31,
                "%s: query has shape %s; needed fewer than 2^31 heads in all", kOp, shape_of(t.query).text);
  PRECAST_CHECK(call->block_size >= 1 && call->block_size <= kMostBlockSize,
                "%s: a block has %d tokens; needed 1 to %d", kOp, call->block_size, kMostBlockSize);
}

__attribute__((noinline)) inline Attention check_call(const Tensors& t, double scale, int64_t window, double softcap) {
  Attention call = {};
  check_caches(t, &call);
  check_integers(kOp, {"block_tables", t.block_tables}, t.query, "query");
  check_integers(kOp, {"lengths", t.lengths}, t.query, "query");
  PRECAST_CHECK(t.block_tables.dim() == 2 && t.block_tables.sizes()[0] == call.sequences,
                "%s: block_tables has shape %s; needed (%d, blocks of a sequence)", kOp, shape_of(t.block_tables).text,
                call.sequences);
  PRECAST_CHECK(t.lengths.dim() == 1 && t.lengths.sizes()[0] == call.sequences,
                "%s: lengths has shape %s; needed (%d,), a length for each sequence", kOp, shape_of(t.lengths).text,
                call.sequences);
  check_numbers("alibi_slopes", t.slopes, call.heads, false, t.query);
  check_numbers("sinks", t.sinks, call.heads, false, t.query);
  check_numbers("key_scale", t.key_scale, call.kv_heads, true, t.query);
  check_numbers("value_scale", t.value_scale, call.kv_heads, true, t.query);
  PRECAST_CHECK(scale - scale == 0, "%s: scale is %g; needed a finite number", kOp, scale);
  PRECAST_CHECK(softcap >= 0 && softcap - softcap == 0,
                "%s: softcap is %g; needed a finite number that is not negative", kOp, softcap);
  PRECAST_CHECK(window >= 0 && window < int64_t{1} << 31, "%s: window is %lld; needed 0 for none, to 2^31 - 1", kOp,
                printable(window));
  const int64_t columns = t.block_tables.sizes()[1];
  PRECAST_CHECK(columns * call.block_size < int64_t{1} << 31,
                "%s: block_tables has room for %lld tokens; needed fewer than 2^31", kOp,
                printable(columns * call.block_size));
  const bool pieces = t.key_cache.dim() == 5;  // then the values' elements may be apart
  for (const Named& one :
       {Named{"key_cache", t.key_cache}, {"value_cache", t.value_cache}, {"block_tables", t.block_tables}}) {
    PRECAST_CHECK(last_is_contiguous(one.tensor) || (pieces && &one.tensor == &t.value_cache),
                  "%s: %s has shape %s with strides %s; needed a contiguous last dimension", kOp, one.name,
                  shape_of(one.tensor).text, ShapeText(one.tensor.strides(), one.tensor.dim()).text);
  }
  call.table_blocks = static_cast<int>(columns);
  call.scale = static_cast<float>(scale);
  constexpr double kNone = 1e30;  // so high a cap changes no score, and its product with log2(e) may overflow
  call.softcap = softcap < kNone ? static_cast<float>(softcap) : 0.0f;
  call.window = static_cast<int>(window);
  return call;
}

inline const float* numbers_of(const Tensor* tensor) {
  return tensor != nullptr ? static_cast<const float*>(tensor->data()) : nullptr;
}

// Fills in pointers and strides. `query` must be contiguous in its last dimension.
inline void place(const Tensors& t, const Tensor& query, Attention* call) {
  const int64_t bytes = cache_bytes(call->cache_dtype), of_query = call->dtype == 0 ? 4 : 2;
  const bool pieces = t.key_cache.dim() == 5;
  const int64_t *q = query.strides(), *k = t.key_cache.strides(), *v = t.value_cache.strides();
  call->query = static_cast<const char*>(query.data());
  call->query_sequence = q[0] * of_query;
  call->query_token = q[1] * of_query;
  call->query_head = q[2] * of_query;
  call->keys = static_cast<const char*>(t.key_cache.data());
  call->key_block = k[0] * bytes;
  call->key_position = k[pieces ? 3 : 1] * bytes;
  call->key_head = k[pieces ? 1 : 2] * bytes;
  call->key_piece = pieces ? k[2] * bytes : 0;
  call->values = static_cast<const char*>(t.value_cache.data());
  call->value_block = v[0] * bytes;
  const ValueDims dims = value_dims(t);
  call->value_position = v[dims.position] * bytes;
  call->value_head = v[dims.head] * bytes;
  call->value_piece = v[dims.element] * bytes;
  call->tables = static_cast<const char*>(t.block_tables.data());
  call->table_row = t.block_tables.strides()[0];
  call->lengths = static_cast<const char*>(t.lengths.data());
  call->length_stride = t.lengths.strides()[0];
  call->slopes = numbers_of(t.slopes);
  call->sinks = numbers_of(t.sinks);
  call->key_scales = numbers_of(t.key_scale);
  call->value_scales = numbers_of(t.value_scale);
  const auto is_long = [](const Tensor& one) { return one.dtype_code() == aoti_torch_dtype_int64(); };
  const auto each = [](const Tensor* one) { return one != nullptr && one->sizes()[0] != 1; };
  call->flags = (is_long(t.block_tables) ? kLongTables : 0) | (is_long(t.lengths) ? kLongLengths : 0) |
                (each(t.key_scale) ? kHeadKeyScales : 0) | (each(t.value_scale) ? kHeadValueScales : 0);
}

}  // namespace precast::decode_attention
