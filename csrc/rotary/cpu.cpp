// Rotary embedding head by head. Compiled once per CPU level.
#include "cpu.h"

#include "rotate_cpu.h"

namespace precast::rotary::PRECAST_CPU_LEVEL {
namespace {

template <class T>
void rotate_all(const Work& work, int64_t begin, int64_t end) {
  const int64_t rotated = 2 * int64_t{work.angles.half};
  int64_t row = begin / work.heads, head = begin - row * work.heads;
  int64_t outer = row / work.tokens, token = row - outer * work.tokens;
  for (int64_t i = begin; i < end; ++i) {
    const bool is_query = head < work.query_heads;
    const Heads& tensor = is_query ? work.query : work.key;
    const int64_t number = is_query ? head : head - work.query_heads;
    const T* from = reinterpret_cast<const T*>(tensor.from + outer * tensor.from_outer + token * tensor.from_token +
                                               number * tensor.from_head);
    T* to =
        reinterpret_cast<T*>(tensor.to + outer * tensor.to_outer + token * tensor.to_token + number * tensor.to_head);
    rotate_head(from, to, token, work.angles);
    if (!work.in_place) __builtin_memcpy(to + rotated, from + rotated, (work.width - rotated) * sizeof(T));
    if (++head < work.heads) continue;
    head = 0;
    if (++token < work.tokens) continue;
    token = 0;
    ++outer;
  }
}

}  // namespace

void rotate_heads(const Work& work, int64_t begin, int64_t end) {
  with_type(work.dtype, [&](auto zero) { rotate_all<decltype(zero)>(work, begin, end); });
}

}  // namespace precast::rotary::PRECAST_CPU_LEVEL
