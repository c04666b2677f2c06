// Local stand-ins for what newer systems add to the symbols that compiled code asks for, so that a library built with
// gcc 12 on Debian 12 loads wherever glibc 2.28 and GLIBCXX 3.4.22 are. Both are hidden: nobody else sees them. Both
// are weak: a compiler that links its standard library statically brings its own, and then those two would clash.
//
// A third, the move of dlopen and dlsym into libc, is answered where they are used (driver.cpp).
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
