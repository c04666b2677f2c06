// The error of a failed check: also part of the adapters to torch.
#include "checks.h"

#include <stdarg.h>
#include <stdio.h>

#include <stdexcept>

namespace precast {

void fail(const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  throw std::runtime_error(text);
}

}  // namespace precast
