// Shared by the host files of the image ops: dtypes including float64, and channels_last. No check writes anything.
#pragma once

#include "../gpu/launch.h"
#include "../host/rows.h"
#include "cpu.h"

namespace precast::image {

// The number of a dtype in args.h, or -1.
inline int number_of(int32_t code) {
  if (code == float64_code()) return kFloat64;
  const DType dtype = dtype_of(code);
  return dtype == DType::kOther ? -1 : static_cast<int>(dtype);
}

inline int64_t bytes_of(int number) { return number == kFloat64 ? 8 : number == kFloat32 ? 4 : 2; }

inline int check_number(const char* op, const Tensor& x) {
  const int number = number_of(x.dtype_code());
  PRECAST_CHECK(number >= 0, "%s: x is %s; needed float32, float16, bfloat16 or float64", op,
                dtype_name(x.dtype_code()));
  return number;
}

// True for torch.channels_last: dimension 1 is innermost in memory, and the others keep their order. A tensor that is
// contiguous as well counts as contiguous.
inline bool is_channels_last(const Tensor& t) {
  const int64_t dim = t.dim(), *sizes = t.sizes(), *strides = t.strides();
  if ((dim != 4 && dim != 5) || t.is_contiguous()) return false;
  int64_t stride = 1;
  const auto fits = [&](int64_t i) {
    const bool right = sizes[i] == 1 || strides[i] == stride;
    stride *= sizes[i];
    return right;
  };
  bool all = fits(1);
  for (int64_t i = dim - 1; i >= 2; --i) all = all && fits(i);
  return all && fits(0);
}

// An uninitialised tensor on the device and with the dtype of `like`, whose channels are innermost if `last` is set.
inline Tensor empty_ordered(const int64_t* sizes, int64_t dim, bool last, const Tensor& like) {
  if (!last) return empty(sizes, dim, like.dtype_code(), like);
  int64_t strides[5], stride = 1;
  const auto next = [&](int64_t i) {
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  };
  next(1);
  for (int64_t i = dim - 1; i >= 2; --i) next(i);
  next(0);
  return empty_strided(dim, sizes, strides, like.dtype_code(), like.device_type(), like.device_index());
}

// The tensor itself if it has that memory order, else a copy in it.
inline Tensor ordered(const Tensor& tensor, bool last) {
  if (!last) return contiguous(tensor);
  if (is_channels_last(tensor)) return another(tensor);
  Tensor copy = empty_ordered(tensor.sizes(), tensor.dim(), true, tensor);
  PRECAST_TORCH(aoti_torch_copy_(copy.get(), tensor.get(), 0));
  return copy;
}

inline uint32_t check_blocks(const char* op, int64_t blocks) {
  PRECAST_CHECK(blocks < (int64_t{1} << 31), "%s: a launch would need %lld blocks; at most 2^31 - 1 are possible", op,
                printable(blocks));
  return static_cast<uint32_t>(blocks);
}

}  // namespace precast::image
