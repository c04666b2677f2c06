// Heads that are normalised before they are rotated: checks of the weights, the choice of units on a GPU, and the norm
// on the CPU, which is the kernel of rms_norm.
#pragma once

#include "../cpu/cpu_level.h"
#include "../norm/cpu.h"
#include "cpu.h"
#include "rotate.h"

namespace precast::rotary {

// What a call says of the norm. Null weights: heads are not normalised.
struct Norms {
  const Tensor* query_weight;
  const Tensor* key_weight;
  double eps;
  int64_t casting;
};

inline void check_norms(const char* op, const Norms& norms, const HeadsShape& shape, const Tensor& query,
                        bool has_key) {
  PRECAST_CHECK(norms.casting >= rms_norm::kCastingNone && norms.casting <= rms_norm::kCastingGemma,
                "%s: casting is %lld; needed 0, 1 or 2", op, printable(norms.casting));
  check_eps(op, norms.eps);
  PRECAST_CHECK(has_key || norms.key_weight == nullptr, "%s: key is None and key_weight is not; needed None for both",
                op);
  const bool of_query = norms.query_weight != nullptr, of_key = norms.key_weight != nullptr;
  PRECAST_CHECK(!has_key || of_query == of_key,
                "%s: %s_weight is None and %s_weight is not; needed both, or neither to leave out the norm", op,
                of_query ? "key" : "query", of_query ? "query" : "key");
  const char* names[] = {"query_weight", "key_weight"};
  for (int i = 0; i < 2; ++i) {
    const Tensor* weight = i == 0 ? norms.query_weight : norms.key_weight;
    if (weight == nullptr) continue;
    const int32_t code = weight->dtype_code();
    PRECAST_CHECK(code == float32_code() || code == query.dtype_code(),
                  "%s: %s is %s and query is %s; needed float32, or that dtype", op, names[i], dtype_name(code),
                  dtype_name(query.dtype_code()));
    check_device(op, {names[i], *weight}, query, "query");
    if (i > 0) check_kind(op, {names[i], *weight}, *norms.query_weight, names[0]);
    PRECAST_CHECK(weight->dim() == 1 && weight->sizes()[0] == shape.width,
                  "%s: %s has shape %s; needed (%lld,), a number for each element of a head", op, names[i],
                  shape_of(*weight).text, printable(shape.width));
  }
}

// Checked weights. One that is not contiguous is copied; this object owns the copy.
class ReadNorm {
 public:
  ReadNorm(const char* op, const Norms& norms, const HeadsShape& shape, const Tensor& query, bool has_key)
      : query_(nullptr), key_(nullptr) {
    check_norms(op, norms, shape, query, has_key);
    norm_.query_weight = data_of(norms.query_weight, query_);
    norm_.key_weight = data_of(norms.key_weight, key_);
    norm_.eps = static_cast<float>(norms.eps);
    norm_.inverse_width = static_cast<float>(1.0 / static_cast<double>(shape.width));
    norm_.casting = static_cast<int>(norms.casting);
    norm_.wide = norms.query_weight != nullptr && norms.query_weight->dtype_code() != query.dtype_code();
  }
  const HeadNorm& norm() const { return norm_; }

 private:
  static const char* data_of(const Tensor* weight, Tensor& copy) {
    if (weight == nullptr) return nullptr;
    if (last_is_contiguous(*weight)) return static_cast<const char*>(weight->data());
    copy = contiguous(*weight);
    return static_cast<const char*>(copy.data());
  }

  Tensor query_, key_;
  HeadNorm norm_ = {};
};

// How many lanes of a warp share a head, and whether each has two vectors of it.
struct NormUnits {
  int64_t lanes;
  bool vectors;
  bool words;  // the kernel for vectors that computes two elements of 16 bits at a time
};

// `misaligned`: the bits of everything but tables and weights that are not at multiples of 16 bytes.
inline NormUnits norm_units(const Angles& angles, const HeadNorm& norm, int64_t width, int64_t bytes,
                            uint64_t misaligned) {
  const int64_t half = angles.half, rest = width - 2 * half, pairs = 16 / bytes;
  misaligned |= misalignment(angles.cos, angles.cos_stride) | misalignment(angles.sin, angles.sin_stride) |
                misalignment(norm.query_weight, 0) | misalignment(norm.key_weight, 0) |
                (static_cast<uint64_t>(half * bytes | rest * bytes) & 15);
  const int64_t units = half / pairs + (rest + 2 * pairs - 1) / (2 * pairs);
  if (misaligned != 0 || units > 32) return {32, false, false};
  constexpr int kDecisive = kEachProduct | kWideTable | kInterleaved;
  const bool words = bytes == 2 && (angles.flags & kDecisive) == kEachProduct && norm.wide == 0;
  return {static_cast<int64_t>(lanes_for(units, 1)), true, words};
}

// The norm of the heads of one token, counted through the leading dimensions.
inline void norm_token(const Work& work, int64_t token) {
  const norm::ForwardFunction forward = PRECAST_AT_CPU_LEVEL(rms_norm, forward);
  const int64_t bytes = work.dtype == static_cast<int>(DType::kFloat32) ? 4 : 2;
  const int64_t outer = token / work.tokens, within = token - outer * work.tokens;
  norm::ForwardRows rows = {};
  rows.hidden = work.width;
  rows.eps = work.norm.eps;
  rows.dtype = work.dtype;
  rows.casting = work.norm.casting;
  rows.wide_columns = work.norm.wide != 0;
  const auto norm = [&](const Heads& heads, const char* weight, int64_t count) {
    if (count == 0) return;
    rows.x = heads.from + outer * heads.from_outer + within * heads.from_token;
    rows.y = heads.to + outer * heads.to_outer + within * heads.to_token;
    rows.x_stride = heads.from_head / bytes;
    rows.y_stride = heads.to_head / bytes;
    rows.weight = weight;
    forward(rows, 0, count);
  };
  norm(work.query, work.norm.query_weight, work.query_heads);
  norm(work.key, work.norm.key_weight, work.heads - work.query_heads);
}

// The heads of a token are in the cache when they are rotated.
inline void norm_and_rotate_cpu(const Work& work) {
  const RotateFunction rotate = PRECAST_AT_CPU_LEVEL(rotary, rotate_heads);
  Work turned = work;
  turned.in_place = true;
  for (Heads* heads : {&turned.query, &turned.key}) {
    heads->from = heads->to;
    heads->from_outer = heads->to_outer;
    heads->from_token = heads->to_token;
    heads->from_head = heads->to_head;
  }
  parallel_for(0, work.outer * work.tokens, grain_rows(work.heads * work.width), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      norm_token(work, token);
      rotate(turned, token * work.heads, (token + 1) * work.heads);
    }
  });
}

}  // namespace precast::rotary
