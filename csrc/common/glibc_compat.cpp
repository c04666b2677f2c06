// Local stand-ins for what newer systems add to the symbols that compiled code asks for, so that a library built with
// gcc 12 on Debian 12 loads wherever glibc 2.28 and GLIBCXX 3.4.22 are. All are hidden: nobody else sees them. All are
// weak: a compiler that links its standard library statically brings its own, and then the two would clash.
//
// One more, the move of dlopen and dlsym into libc, is answered where they are used (driver.cpp).
#include <new>

// glibc 2.32: the standard library's reference counts skip atomic operations while this is true. It stays false.
extern "C" {
__attribute__((visibility("hidden"), weak)) char __libc_single_threaded = 0;
}

// GLIBCXX 3.4.29, called by std::vector and its like for a size that overflows. Defined under its linkage name, as the
// standard library's own declaration would give it back its public visibility.
namespace precast {
[[noreturn]] __attribute__((visibility("hidden"), weak)) void throw_bad_array_new_length() __asm__(
    "_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_array_new_length() { throw std::bad_alloc(); }
}  // namespace precast

// CXXABI 1.3.13: the counting inside std::exception_ptr, of which at::parallel_for has copies inlined. The constructor
// and the destructor that do the same, out of line, are in every libstdc++ (CXXABI 1.3.3).
namespace precast {
void copy_exception(void* to, const void* from) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void destroy_exception(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");
__attribute__((visibility("hidden"), weak)) void add_reference(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
__attribute__((visibility("hidden"), weak)) void release(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

void add_reference(void* pointer) {
  void* uncounted = nullptr;  // never destroyed: the reference is the caller's
  copy_exception(&uncounted, pointer);
}

void release(void* pointer) { destroy_exception(pointer); }
}  // namespace precast
