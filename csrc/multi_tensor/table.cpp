// A plan's table on the device, and the launches that every op makes with it.
#include <utility>

#include "plan.h"

namespace precast::multi_tensor {

KernelFamily kernels = {"multi_tensor", kEntries, entry::kCount};

// A list of tensors that a graph refers to.
struct Kept {
  AtenTensorHandle tensor;
  Kept* next;
};

namespace {

constexpr int64_t round_up(int64_t bytes) { return (bytes + 15) & ~int64_t{15}; }

TableLayout layout_for(int64_t count, int64_t parts) {
  TableLayout at;
  at.first = count * static_cast<int64_t>(sizeof(Row));
  at.norm_first = at.first + (count + 1) * 4;
  at.slots = at.norm_first + (count + 1) * 4;
  at.written = at.slots + count * 4;
  at.sums = count * static_cast<int64_t>(sizeof(Coefficients));
  at.total = round_up(at.sums + count * 8);
  at.parts = at.total + 16;
  at.scratch = at.parts + round_up(parts * 4);
  return at;
}

AtenTensorHandle bytes_on(int64_t bytes, int32_t device_type, int32_t device, bool pinned) {
  const int64_t stride = 1;
  if (!pinned) return empty_strided(1, &bytes, &stride, aoti_torch_dtype_uint8(), device_type, device).release();
  AtenTensorHandle made = nullptr;
  torch_check(aoti_torch_empty_strided_pinned(1, &bytes, &stride, aoti_torch_dtype_uint8(), device_type, device, &made),
              "empty_strided in pinned memory");
  return made;
}

void drop(AtenTensorHandle& tensor) {
  if (tensor != nullptr) aoti_torch_delete_tensor_object(std::exchange(tensor, nullptr));
}

}  // namespace

void Plan::keep(AtenTensorHandle& tensor) {
  if (tensor != nullptr) kept_ = new Kept{std::exchange(tensor, nullptr), kept_};
}

void Plan::release() {
  // The graph that captured a call outlives its plan, and nothing says when it ends: its table's source stays for good.
  if (once_) kept_ = nullptr;
  drop(table_);
  drop(scratch_);
  while (kept_ != nullptr) {
    Kept* next = kept_->next;
    drop(kept_->tensor);
    delete kept_;
    kept_ = next;
  }
}

// Writes and uses of a table are ordered by the stream. Each stream has a table tensor of its own; when freed, its
// memory goes back to that stream. Only a captured launch may use the table of another stream: a graph must run after
// the earlier steps in any case, because it changes the same parameters.
//
// The source in pinned memory is a new tensor each time. Torch's pinned-memory allocator does not reuse its memory
// before the copy has ended.
Memory Plan::memory(int64_t parts) {
  const bool on_gpu = device_type_ == aoti_torch_device_type_cuda();
  const StreamState stream = on_gpu ? stream_state(device_) : StreamState{};
  const TableLayout wanted = layout_for(count_, parts);
  const bool fits = table_ != nullptr && !moved_ && wanted.scratch <= layout_.scratch;
  if (!fits || (stream.handle != stream_ && !stream.capturing)) {
    Tensor host(bytes_on(wanted.written, aoti_torch_device_type_cpu(), 0, on_gpu));
    char* at = static_cast<char*>(host.mutable_data());
    memcpy(at, rows_.data(), static_cast<size_t>(count_) * sizeof(Row));
    memcpy(at + wanted.first, first_.data(), static_cast<size_t>(count_ + 1) * 4);
    memcpy(at + wanted.norm_first, norm_first_.data(), static_cast<size_t>(count_ + 1) * 4);
    memcpy(at + wanted.slots, slots_.data(), static_cast<size_t>(count_) * 4);
    Tensor table(bytes_on(wanted.written, device_type_, device_, false));
    Tensor scratch(bytes_on(wanted.scratch, device_type_, device_, false));
    PRECAST_TORCH(aoti_torch_copy_(table.get(), host.get(), 1));
    if (captured_) {
      keep(table_);
      keep(scratch_);
    }
    drop(table_);
    drop(scratch_);
    table_ = table.release();
    scratch_ = scratch.release();
    if (stream.capturing) {  // every replay repeats the copy
      AtenTensorHandle source = host.release();
      keep(source);
    }
    layout_ = wanted;
    stream_ = stream.handle;
    moved_ = captured_ = false;
  }
  captured_ = captured_ || stream.capturing;
  void *table = nullptr, *scratch = nullptr;
  torch_check(torch_get_mutable_data_ptr(table_, &table), "data pointer");
  torch_check(torch_get_mutable_data_ptr(scratch_, &scratch), "data pointer");
  return {static_cast<char*>(table), static_cast<char*>(scratch)};
}

void launch_norm(const Plan& plan, const Memory& memory, float* total, float* sums) {
  const TableLayout& at = plan.layout();
  const auto blocks = static_cast<uint32_t>(plan.norm_blocks()), count = static_cast<uint32_t>(plan.count());
  UpdateArgs parts = {};
  parts.rows = reinterpret_cast<const Row*>(memory.table);
  parts.first = reinterpret_cast<const uint32_t*>(memory.table + at.norm_first);
  parts.parts = reinterpret_cast<float*>(memory.scratch + at.parts);
  parts.count = count;
  void* arguments[] = {&parts};
  if (blocks > 0) {
    launch(kernels, plan.device(), entry::multi_tensor_norm_parts, {blocks, 1, kThreads, 1, 0}, arguments);
  }
  SumArgs each = {parts.first, parts.parts, sums, total, count, 1};
  void* sum_arguments[] = {&each};
  launch(kernels, plan.device(), entry::multi_tensor_sum_each, {count, 1, 512, 1, 0}, sum_arguments);
  launch(kernels, plan.device(), entry::multi_tensor_sum_total, {1, 1, 512, 1, 0}, sum_arguments);
}

}  // namespace precast::multi_tensor
