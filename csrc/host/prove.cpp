// Shows that the functions of a pre-release of torch do what those of its release do. Such a torch is a commit from the
// time before, in which a function may have been different. The loader defines two toy ops, which Python calls with
// tensors of known content (pkg/precast/_load/proof.py). They use every function that kernels use on the CPU.
#include "torch.h"

namespace precast {
namespace {

// Two times x + y + all of `more` + number + count, or its negative, with rows one after the other and as x has them.
TensorPair sum(const Tensor& x, const Tensor* y, const TensorList& more, double number, int64_t count, bool negative) {
  PRECAST_CHECK(x.dim() == 2 && x.sizes()[0] == 2 && x.sizes()[1] == 3 && x.numel() == 6, "shape %s", shape_of(x).text);
  PRECAST_CHECK(x.strides()[0] == 1 && x.strides()[1] == 2 && !x.is_contiguous(), "strides");
  PRECAST_CHECK(x.storage_offset() == 1 && x.storage_bytes() == 28, "storage");
  PRECAST_CHECK(x.dtype_code() == float32_code(), "dtype %s", dtype_name(x.dtype_code()));
  PRECAST_CHECK(x.device_type() == aoti_torch_device_type_cpu(), "device %s", device_of(x).text);
  PRECAST_CHECK(x.data() == x.mutable_data() && num_threads() >= 1, "data pointer");
  const Tensor rows = contiguous(x);
  PRECAST_CHECK(rows.is_contiguous() && rows.data() != x.data(), "contiguous copy");
  const Tensor same = another(rows);
  PRECAST_CHECK(same.data() == rows.data(), "another reference");
  Tensor result = empty_contiguous_like(x);
  const auto out = static_cast<float*>(result.mutable_data());
  parallel_for(0, 6, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double value = static_cast<const float*>(same.data())[i] + number + static_cast<double>(count);
      if (y != nullptr) value += static_cast<const float*>(y->data())[i];
      for (int64_t j = 0; j < more.size(); ++j) value += static_cast<const float*>(more[j].data())[i];
      out[i] = static_cast<float>(negative ? -value : value);
    }
  });
  Tensor like_x = with_strides_of(result, x);
  return {std::move(result), std::move(like_x)};
}

int64_t refuse_all(const Tensor&) { fail("this op refuses"); }

constexpr Implementation kProof[] = {
    PRECAST_IMPLEMENTATION("sum", "CPU", sum),
    PRECAST_IMPLEMENTATION("refuse", "CPU", refuse_all),
};

}  // namespace
}  // namespace precast

// Registers the toy ops, which must be defined in this namespace.
PRECAST_EXPORT int precast_register_proof(const char* space, char* err, size_t cap) {
  return precast::guarded(
      err, cap, [&] { precast::register_implementations({"proof", precast::kProof, 2, nullptr}, "CPU", space); });
}
