// Launch shapes of the kernels that move rows, and the two launches around them if a slot can have several pairs.
#pragma once

#include <algorithm>

#include "../gpu/row_launch.h"
#include "entries.h"
#include "pairs.h"

namespace precast::moe {

extern KernelFamily kernels;
PRECAST_ENTRIES(MOE_KERNELS)

inline int64_t unit_of(uint64_t misaligned, int64_t row_bytes, int64_t element_bytes) {
  const uint64_t bits = misaligned | static_cast<uint64_t>(row_bytes);
  return (bits & 15) == 0 ? 16 : (bits & 3) == 0 ? 4 : element_bytes;
}

// The threads of a row of `units`, `each` per thread, and the rows of a block. The caller names the kernel.
inline RowKernel rows_of_threads(int64_t units, int64_t each = 2) {
  const int64_t threads = std::min<int64_t>(kRowThreads, warps_for((std::max<int64_t>(units, 1) + each - 1) / each));
  return {kNoEntry, static_cast<uint32_t>(threads), static_cast<uint32_t>(threads < 128 ? 128 / threads : 1), 0};
}

// How many blocks of 128 threads share a row of `units`, so that all rows make about two blocks per multiprocessor.
constexpr int64_t kSharedThreads = 128;

inline int64_t parts_of_row(int device, int64_t rows, int64_t units) {
  const int64_t most = std::max<int64_t>(2 * multiprocessors(device) / std::max<int64_t>(rows, 1), 1);
  return std::min(std::max<int64_t>((units + kSharedThreads - 1) / kSharedThreads, 1), most);
}

// Splits rows over more, smaller blocks if at least half of the multiprocessors would have no block.
inline void share_rows(LaunchShape& shape, int device, int64_t units) {
  if (shape.threads_y > 1 || 2 * int64_t{shape.blocks_x} > multiprocessors(device)) return;
  shape.threads_x = kSharedThreads;
  shape.blocks_y = static_cast<uint32_t>(parts_of_row(device, shape.blocks_x, units));
}

// Slots that can have any number of pairs: call zero() before the rows are written, and add_up() afterwards.
class AnyPairs {
 public:
  AnyPairs(const Tensor& like, const Norm& rows, const Places& places, const int32_t* positions, char* result)
      : rows_(rows),
        places_(places),
        positions_(positions),
        result_(result),
        row_bytes_(rows.hidden * rows.element_bytes()),
        owners_(empty(&places.slots, 1, aoti_torch_dtype_int32(), like)) {}

  void zero() const {
    const int64_t bytes = places_.slots * row_bytes_, pairs = places_.tokens * places_.k;
    if (bytes == 0) return;
    ZeroArgs args = {result_, bytes, positions_, static_cast<int*>(owners_.mutable_data()), places_.slots, pairs};
    void* arguments[] = {&args};
    const int64_t blocks = std::min<int64_t>((bytes + 4095) / 4096, int64_t{1} << 20);
    launch(kernels, rows_.device, entry::moe_zero, {static_cast<uint32_t>(blocks), 1, 256, 1, 0}, arguments);
  }

  // `rows`: one per token, `stride` bytes apart.
  void add_up(const void* rows, int64_t stride, const float* weights) const {
    const int64_t pairs = places_.tokens * places_.k;
    if (places_.slots * row_bytes_ == 0 || pairs < 2) return;
    RepeatArgs args = {};
    args.rows = static_cast<const char*>(rows);
    args.result = result_;
    args.positions = positions_;
    args.weights = weights;
    args.owners = static_cast<const int*>(owners_.data());
    args.stride = stride;
    args.row_bytes = row_bytes_;
    args.slots = places_.slots;
    args.tokens = static_cast<unsigned>(places_.tokens);
    args.k = static_cast<int>(places_.k);
    args.width = static_cast<unsigned>(rows_.hidden);
    args.dtype = static_cast<int>(rows_.dtype);
    void* arguments[] = {&args};
    const int64_t blocks = (pairs + kRepeatThreads - 1) / kRepeatThreads;
    launch(kernels, rows_.device, entry::moe_repeat, {static_cast<uint32_t>(blocks), 1, kRepeatThreads, 1, 0},
           arguments);
  }

 private:
  const Norm& rows_;
  const Places& places_;
  const int32_t* positions_;
  char* result_;
  int64_t row_bytes_;
  const Tensor owners_;
};

}  // namespace precast::moe
