// The functions of torch that the library calls, all of them: what each means, who owns what, and the first torch whose
// libtorch_cpu.so has it under this name. Torch keeps a function of this interface, its type and its ownership from
// that version on. torch_table.h makes a table of them, torch_c.h their names for us; more of torch is in
// torch_names.h.
//
// Included more than once, with PRECAST_SINCE and PRECAST_OPTIONAL_SINCE defined as what to make of a function:
// (first torch, type of the result, name, parameters). test_torch_c.py compares each with torch's own headers.
// clang-format off

// ---- Torch's numbers for dtypes and device types ----

PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_float32, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_float16, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_bfloat16, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_float64, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_int64, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_int32, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_int16, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_int8, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_uint8, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_bool, ())
PRECAST_SINCE(2, 3, int32_t, aoti_torch_dtype_complex64, ())
PRECAST_SINCE(2, 3, int32_t, aoti_torch_dtype_complex128, ())
PRECAST_SINCE(2, 3, int32_t, aoti_torch_dtype_complex32, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_float8_e4m3fn, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_dtype_float8_e5m2, ())

PRECAST_SINCE(2, 2, int32_t, aoti_torch_device_type_cpu, ())
PRECAST_SINCE(2, 2, int32_t, aoti_torch_device_type_cuda, ())
PRECAST_SINCE(2, 7, int32_t, aoti_torch_device_type_meta, ())

// ---- Questions about a tensor; all borrow it ----

PRECAST_SINCE(2, 3, AOTITorchError, aoti_torch_get_dim, (AtenTensorHandle tensor, int64_t* dim))
PRECAST_SINCE(2, 3, AOTITorchError, aoti_torch_get_numel, (AtenTensorHandle tensor, int64_t* numel))
// `dim` values owned by the tensor, valid until its shape changes or its last reference is deleted.
PRECAST_SINCE(2, 2, AOTITorchError, aoti_torch_get_sizes, (AtenTensorHandle tensor, int64_t** sizes))
// The same for strides, in elements.
PRECAST_SINCE(2, 2, AOTITorchError, aoti_torch_get_strides, (AtenTensorHandle tensor, int64_t** strides))
// In elements, from the beginning of the storage.
PRECAST_SINCE(2, 2, AOTITorchError, aoti_torch_get_storage_offset, (AtenTensorHandle tensor, int64_t* offset))
// In bytes. After the storage was resized it may be less than the tensor covers.
PRECAST_SINCE(2, 2, AOTITorchError, aoti_torch_get_storage_size, (AtenTensorHandle tensor, int64_t* bytes))
PRECAST_SINCE(2, 8, AOTITorchError, aoti_torch_is_contiguous, (AtenTensorHandle tensor, bool* contiguous))
PRECAST_SINCE(2, 3, AOTITorchError, aoti_torch_get_dtype, (AtenTensorHandle tensor, int32_t* dtype))
PRECAST_SINCE(2, 3, AOTITorchError, aoti_torch_get_device_type, (AtenTensorHandle tensor, int32_t* type))
PRECAST_SINCE(2, 3, AOTITorchError, aoti_torch_get_device_index, (AtenTensorHandle tensor, int32_t* index))
// The first element, with the storage offset applied; null for a tensor without elements. The memory is the tensor's.
PRECAST_SINCE(2, 10, AOTITorchError, torch_get_const_data_ptr, (AtenTensorHandle tensor, const void** data))
// The same for writing: a lazy copy is materialised first.
PRECAST_SINCE(2, 10, AOTITorchError, torch_get_mutable_data_ptr, (AtenTensorHandle tensor, void** data))
// False for the undefined tensor, which stands for "no gradient".
PRECAST_SINCE(2, 9, AOTITorchError, aoti_torch_is_defined, (AtenTensorHandle tensor, bool* defined))

// ---- Making and deleting tensors ----

// Borrows the tensor. `*same` is a new reference to it.
PRECAST_SINCE(2, 7, AOTITorchError, aoti_torch_new_tensor_handle, (AtenTensorHandle tensor, AtenTensorHandle* same))
// Takes the reference.
PRECAST_SINCE(2, 2, AOTITorchError, aoti_torch_delete_tensor_object, (AtenTensorHandle tensor))
// `*made` is a new reference to an uninitialised tensor; `sizes` and `strides` are read during the call.
PRECAST_SINCE(2, 2, AOTITorchError, aoti_torch_empty_strided,
    (int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
     int32_t device_index, AtenTensorHandle* made))
// The same in page-locked memory of the host.
PRECAST_SINCE(2, 9, AOTITorchError, aoti_torch_empty_strided_pinned,
    (int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
     int32_t device_index, AtenTensorHandle* made))
// Borrows both. Converts between dtypes and devices.
PRECAST_SINCE(2, 3, AOTITorchError, aoti_torch_copy_,
              (AtenTensorHandle to, AtenTensorHandle from, int32_t non_blocking))

// ---- Lists, as which a `Tensor[]` lies on the stack ----

PRECAST_SINCE(2, 10, AOTITorchError, torch_list_size, (StableListHandle list, size_t* size))
// Hands out the element's own reference, not a new one: ask for each element once, and delete what it gave.
PRECAST_SINCE(2, 10, AOTITorchError, torch_list_get_item, (StableListHandle list, size_t index, StableIValue* item))
// Takes the list. The references of its elements are unaffected.
PRECAST_SINCE(2, 10, AOTITorchError, torch_delete_list, (StableListHandle list))

// ---- Torch's threads ----

// Calls `body` for parts of [begin, end), each at least `grain` long, and returns after the last.
PRECAST_SINCE(2, 10, AOTITorchError, torch_parallel_for,
    (int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t begin, int64_t end, void* context),
     void* context))
PRECAST_SINCE(2, 10, AOTITorchError, torch_get_num_threads, (uint32_t* threads))

// ---- Registration ----

// `*library` is new; it keeps its kernels registered, so we never delete it. The strings are read during the call.
PRECAST_SINCE(2, 7, AOTITorchError, aoti_torch_library_init_impl,
              (const char* space, const char* key, const char* file, uint32_t line, TorchLibraryHandle* library))
// `function(stack, arguments, results)` takes every reference on the stack, and puts new ones there as results.
PRECAST_SINCE(2, 10, AOTITorchError, torch_library_impl,
    (TorchLibraryHandle library, const char* op, void (*function)(StableIValue*, uint64_t, uint64_t),
     uint64_t abi_version))

// ---- Optional ----

// The text of this thread's last failure: torch's memory, valid until the next failure.
PRECAST_OPTIONAL_SINCE(2, 13, const char*, torch_exception_get_what_without_backtrace, ())
