// Positions: the slot of each pair of a token and one of its k experts. Their checks, and on the CPU the pairs of each
// slot.
#pragma once

#include <algorithm>

#include "../cpu/cpu_level.h"
#include "../host/lists.h"
#include "check.h"
#include "cpu.h"

namespace precast::moe {

struct Places {
  int64_t tokens, k, slots;
  bool whole;
};

inline Places check_places(const char* op, const Tensor& positions, const Named& like, int64_t slots, bool whole) {
  PRECAST_CHECK(positions.dtype_code() == aoti_torch_dtype_int32(), "%s: positions is %s; needed int32", op,
                dtype_name(positions.dtype_code()));
  check_device(op, {"positions", positions}, like.tensor, like.name);
  PRECAST_CHECK(positions.dim() == 2 && positions.sizes()[1] >= 1,
                "%s: positions has shape %s; needed (tokens, k) with k of 1 or more", op, shape_of(positions).text);
  const Places places = {positions.sizes()[0], positions.sizes()[1], slots, whole};
  PRECAST_CHECK(slots >= 0 && slots < kMostPairs, "%s: %lld slots; needed 0 to 2^31 - 1", op, printable(slots));
  PRECAST_CHECK(positions.numel() < kMostPairs, "%s: positions has shape %s; needed fewer than 2^31 elements", op,
                shape_of(positions).text);
  PRECAST_CHECK(!whole || positions.numel() == slots,
                "%s: positions has shape %s and there are %lld slots; needed one position for each slot", op,
                shape_of(positions).text, printable(slots));
  return places;
}

inline void check_tokens(const char* op, const Named& places, const Named& rows, int64_t tokens) {
  PRECAST_CHECK(places.tensor.sizes()[0] == tokens, "%s: %s has shape %s and %s %s; needed as many rows", op,
                places.name, shape_of(places.tensor).text, rows.name, shape_of(rows.tensor).text);
}

constexpr int64_t kMostUnits = int64_t{1} << 31;

inline void check_width(const char* op, const Norm& rows) {
  PRECAST_CHECK(rows.hidden < kMostUnits, "%s: rows of %lld elements; needed fewer than 2^31", op,
                printable(rows.hidden));
}

// The CPU kernels refuse a position without a slot before they write anything.
inline void check_values(const char* op, const int32_t* positions, const Places& places) {
  for (int64_t pair = 0; pair < places.tokens * places.k; ++pair) {
    const int64_t slot = positions[pair] < 0 ? (places.whole ? ~positions[pair] : 0) : positions[pair];
    PRECAST_CHECK(slot < places.slots || (positions[pair] < 0 && !places.whole),
                  "%s: positions has %d and there are %lld slots; needed one of these, or a negative number", op,
                  positions[pair], printable(places.slots));
  }
}

// The pairs of each slot. Callers may pass any positions, so several pairs can name one slot.
class Owners {
 public:
  Owners(const int32_t* positions, const Places& places) : places_(places), positions_(positions), ends_(places.slots) {
    std::fill(ends_.data(), ends_.data() + places.slots, 0);
    for (int64_t pair = 0; pair < places.tokens * places.k; ++pair) {
      if (positions[pair] >= 0 && ++ends_[positions[pair]] > 1) repeated_ = true;
    }
  }

  // True if a slot has several pairs, whose rows must then be summed.
  bool repeated() const { return repeated_; }

  // Clears the rows of slots without a pair. Call it before add_up().
  void clear_others(char* result, int64_t row_bytes) const {
    for (int64_t slot = 0; slot < places_.slots; ++slot) {
      if (ends_[slot] == 0) memset(result + slot * row_bytes, 0, static_cast<size_t>(row_bytes));
    }
  }

  // Writes to each slot the sum of its pairs' rows times their weights, in the order of the pairs. `rows` holds one row
  // per token.
  void add_up(const CombineRows& rows, char* result, int64_t row_bytes) {
    const int64_t pairs = places_.tokens * places_.k;
    Array<int32_t> tokens(pairs);
    Array<float> factors(pairs);
    for (int64_t slot = 1; slot < places_.slots; ++slot) ends_[slot] += ends_[slot - 1];
    for (int64_t pair = pairs - 1; pair >= 0; --pair) {
      if (positions_[pair] < 0) continue;
      const int32_t at = --ends_[positions_[pair]];  // becomes the beginning of the slot's pairs
      tokens[at] = static_cast<int32_t>(pair / places_.k);
      factors[at] = rows.weights == nullptr ? 1.0f : rows.weights[pair];
    }
    int64_t all = 0;
    for (int64_t pair = 0; pair < pairs; ++pair) all += positions_[pair] >= 0;
    const CombineFunction combine = PRECAST_AT_CPU_LEVEL(moe, combine);
    parallel_for(0, places_.slots, grain_rows(rows.width), [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        CombineRows one = rows;
        one.result = result + slot * row_bytes;
        one.positions = tokens.data() + ends_[slot];
        one.weights = factors.data() + ends_[slot];
        one.slots = places_.tokens;
        one.k = (slot + 1 < places_.slots ? ends_[slot + 1] : all) - ends_[slot];
        combine(one, 0, 1);
      }
    });
  }

 private:
  const Places places_;
  const int32_t* positions_;
  Array<int32_t> ends_;  // pairs per slot; in add_up(), where they end and then begin
  bool repeated_ = false;
};

}  // namespace precast::moe
