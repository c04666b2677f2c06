// Checks that cost one comparison when they hold. The message is formatted only when a check fails.
#pragma once

#include <stdint.h>
#include <stdio.h>

#include <exception>

namespace precast {

// Throws std::runtime_error, which torch turns into RuntimeError. The format is that of printf.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2), cold));

// Casts a number for %lld.
inline long long printable(int64_t number) { return static_cast<long long>(number); }

// Formats a shape as "(32, 4096)". Use it inside one expression: fail("... %s ...", ShapeText(sizes, dim).text).
struct ShapeText {
  ShapeText(const int64_t* sizes, int64_t dim) __attribute__((cold));
  char text[256];
};

// Returns "float32" and the like for torch's dtype codes.
const char* dtype_name(int32_t dtype) __attribute__((cold));

// Formats a device as "cuda:1".
struct DeviceText {
  DeviceText(int32_t type, int32_t index) __attribute__((cold));
  char text[32];
};

// Turns an exception into a status and a message for the C interface.
template <class Body>
int guarded(char* err, size_t cap, const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    if (err != nullptr && cap > 0) snprintf(err, cap, "%s", error.what());
    return 1;
  }
}

}  // namespace precast

// A function of the C interface.
#define PRECAST_EXPORT extern "C" __attribute__((visibility("default")))

#define PRECAST_CHECK(condition, ...)                                    \
  do {                                                                   \
    if (__builtin_expect(!(condition), 0)) ::precast::fail(__VA_ARGS__); \
  } while (false)
