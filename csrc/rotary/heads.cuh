// The heads and the unit of a thread, and the form of the entry points.
#pragma once

#include "../gpu/device.cuh"
#include "args.h"

namespace precast {
namespace rotary {

constexpr u32 kThreads = 128;

struct Place {
  const char* from;  // the first byte of the first head
  char* to;
  i64 from_step, to_step;  // to the next head
  u32 count;               // heads
  i64 token;
  u32 unit;
  bool is_query;
};

// kHeads: the most heads of a thread. Reads the fields of both tensors and keeps one of them: selecting an address
// would copy the arguments.
template <int kHeads>
DEVICE Place place_of(const RotaryArgs& a, u32 index) {
  const u32 row = quotient(index, a.units), local = quotient(row, a.groups), number = row - local * a.groups.divisor;
  const bool is_query = number < a.query_groups;
  const i64 outer = a.first_outer + blockIdx.y, token = a.first_token + local;
  const u32 each = kHeads > 1 ? a.each : 1, head = (is_query ? number : number - a.query_groups) * each;
  const u32 left = kHeads > 1 ? (is_query ? a.query_heads : a.key_heads) - head : 1;
  const Heads &q = a.query, &k = a.key;
  const i64 from_step = is_query ? q.from_head : k.from_head, to_step = is_query ? q.to_head : k.to_head;
  const char* from = is_query ? q.from : k.from;
  from += outer * (is_query ? q.from_outer : k.from_outer) + token * (is_query ? q.from_token : k.from_token) +
          head * from_step;
  char* to = is_query ? q.to : k.to;
  to += outer * (is_query ? q.to_outer : k.to_outer) + token * (is_query ? q.to_token : k.to_token) + head * to_step;
  return {from, to, from_step, to_step, left < each ? left : each, token, index - row * a.units.divisor, is_query};
}

}  // namespace rotary
}  // namespace precast
