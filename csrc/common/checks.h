// Checks that cost one comparison when they hold. The text is put together only when one fails.
#pragma once

#include <stdint.h>

namespace precast {

// Throws std::runtime_error, which torch turns into RuntimeError. The text is formatted as by printf.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2), cold));

// A number as %lld takes it.
inline long long printable(int64_t number) { return static_cast<long long>(number); }

// "(32, 4096)", to be used inside one expression: fail("... %s ...", ShapeText(sizes, dim).text).
struct ShapeText {
  ShapeText(const int64_t* sizes, int64_t dim) __attribute__((cold));
  char text[256];
};

// "float32" for a dtype code of torch.
const char* dtype_name(int32_t dtype) __attribute__((cold));

// "cuda:1" for a device.
struct DeviceText {
  DeviceText(int32_t type, int32_t index) __attribute__((cold));
  char text[32];
};

}  // namespace precast

#define PRECAST_CHECK(condition, ...)                                    \
  do {                                                                   \
    if (__builtin_expect(!(condition), 0)) ::precast::fail(__VA_ARGS__); \
  } while (false)
