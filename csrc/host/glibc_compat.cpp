// Local stand-ins for symbols that compiled code needs but older systems lack. With them, a library built with gcc 12
// on Debian 12 loads on any system with glibc 2.28 and GLIBCXX 3.4.22. All are hidden, so no other library sees them.
// All are weak, because a compiler that links its standard library statically brings its own, and the two would clash.
//
// dynamic_linker.h handles one more case: the move of dlopen and dlsym into libc.
#include <new>

// glibc 2.32: the standard library's reference counts skip atomic operations while this is true. It stays false.
extern "C" {
__attribute__((visibility("hidden"), weak)) char __libc_single_threaded = 0;
}

// GLIBCXX 3.4.29: std::vector and others call it for a size that overflows. It is defined under its linkage name,
// because the standard library's declaration would make it public again.
namespace precast {
[[noreturn]] __attribute__((visibility("hidden"), weak)) void throw_bad_array_new_length() __asm__(
    "_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_array_new_length() { throw std::bad_alloc(); }
}  // namespace precast

// CXXABI 1.3.13: the reference counting of std::exception_ptr, which at::parallel_for inlines. The out-of-line
// constructor and destructor do the same and are in every libstdc++ (CXXABI 1.3.3).
namespace precast {
void copy_exception(void* to, const void* from) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void destroy_exception(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");
__attribute__((visibility("hidden"), weak)) void add_reference(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
__attribute__((visibility("hidden"), weak)) void release(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

void add_reference(void* pointer) {
  void* uncounted = nullptr;  // not destroyed: the reference belongs to the caller
  copy_exception(&uncounted, pointer);
}

void release(void* pointer) { destroy_exception(pointer); }
}  // namespace precast
