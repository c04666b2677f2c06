// The head and unit of a thread, and the form of the entry points.
#pragma once

#include "../gpu/device.cuh"
#include "args.h"

namespace precast {
namespace rotary {

constexpr u32 kThreads = 128;

struct Place {
  const char* from;  // the first byte of the head
  char* to;
  i64 token;
  u32 unit;
  bool is_query;
};

// Reads the fields of both tensors and keeps one of them: selecting an address would copy the arguments.
DEVICE Place place_of(const RotaryArgs& a, u32 index) {
  const u32 row = quotient(index, a.units), local = quotient(row, a.heads), number = row - local * a.heads.divisor;
  const bool is_query = number < a.query_heads;
  const i64 outer = a.first_outer + blockIdx.y, token = a.first_token + local;
  const i64 head = is_query ? number : number - a.query_heads;
  const Heads &q = a.query, &k = a.key;
  const char* from = is_query ? q.from : k.from;
  from += outer * (is_query ? q.from_outer : k.from_outer) + token * (is_query ? q.from_token : k.from_token) +
          head * (is_query ? q.from_head : k.from_head);
  char* to = is_query ? q.to : k.to;
  to += outer * (is_query ? q.to_outer : k.to_outer) + token * (is_query ? q.to_token : k.to_token) +
        head * (is_query ? q.to_head : k.to_head);
  return {from, to, token, index - row * a.units.divisor, is_query};
}

}  // namespace rotary
}  // namespace precast
