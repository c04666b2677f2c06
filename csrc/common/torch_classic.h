// The part of torch's stable C interface that the host library uses, for torch 2.4 to 2.9, which have none or not all
// of it: the same names and the same ownership, made from torch's C++ in torch_classic.cpp. That is the one file that
// is compiled for a single minor of torch; nothing of torch is included here, so all others serve every minor.
//
// What goes wrong inside torch comes out as torch's own exception: the statuses are there for the form, and zero.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace precast {

using AOTITorchError = int32_t;
using AtenTensorHandle = struct AtenTensorOpaque*;      // an at::Tensor on the heap
using StableListHandle = struct StableListOpaque*;      // a c10::List of tensors, likewise
using TorchLibraryHandle = struct TorchLibraryOpaque*;  // a torch::Library
using StableIValue = uint64_t;                          // a handle, a double, an int64_t or a bool, low bytes first
constexpr uint64_t TORCH_ABI_VERSION = 0;               // of this interface; nobody asks

int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float64();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_dtype_int32();
int32_t aoti_torch_dtype_int16();
int32_t aoti_torch_dtype_int8();
int32_t aoti_torch_dtype_uint8();
int32_t aoti_torch_dtype_bool();
int32_t aoti_torch_dtype_complex64();
int32_t aoti_torch_dtype_complex128();
int32_t aoti_torch_dtype_complex32();
int32_t aoti_torch_dtype_float8_e4m3fn();
int32_t aoti_torch_dtype_float8_e5m2();

int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_device_type_meta();

AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* dim);
AOTITorchError aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* numel);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** sizes);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** strides);
AOTITorchError aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* contiguous);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* dtype);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* type);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* index);
AOTITorchError torch_get_const_data_ptr(AtenTensorHandle tensor, const void** data);
AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** data);

AOTITorchError aoti_torch_is_defined(AtenTensorHandle tensor, bool* defined);
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle tensor, AtenTensorHandle* same);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
AOTITorchError aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle* made);
AOTITorchError aoti_torch_empty_strided_pinned(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                               int32_t device_type, int32_t device_index, AtenTensorHandle* made);
AOTITorchError aoti_torch_copy_(AtenTensorHandle to, AtenTensorHandle from, int32_t non_blocking);

AOTITorchError torch_list_size(StableListHandle list, size_t* size);
AOTITorchError torch_list_get_item(StableListHandle list, size_t index, StableIValue* item);
AOTITorchError torch_delete_list(StableListHandle list);

AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t grain,
                                  void (*body)(int64_t begin, int64_t end, void* context), void* context);
AOTITorchError torch_get_num_threads(uint32_t* threads);

AOTITorchError aoti_torch_library_init_impl(const char* space, const char* key, const char* file, uint32_t line,
                                            TorchLibraryHandle* library);
AOTITorchError torch_library_impl(TorchLibraryHandle library, const char* op,
                                  void (*function)(StableIValue*, uint64_t, uint64_t), uint64_t abi_version);

}  // namespace precast
