// dlopen and dlsym as every glibc from 2.28 on has them.
#pragma once

#include <dlfcn.h>

// glibc 2.34 moved these into libc under a new version. Binding to the old version, which newer systems still have,
// lets a library built on a new system load on an old one.
#if defined(__x86_64__)
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror,dlerror@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlopen,dlopen@GLIBC_2.17");
__asm__(".symver dlsym,dlsym@GLIBC_2.17");
__asm__(".symver dlerror,dlerror@GLIBC_2.17");
#endif
