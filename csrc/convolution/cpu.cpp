// Causal convolutions over buffers of floats in the first cache, sixteen lanes at a time. Compiled once per CPU level.
//
// A buffer has lines, one for each token: kTileChannels channels, or one channel's number if tokens are neighbours in
// memory. So a tap is a whole line away, and both orders take the same loops: position p of a result is the sum over k
// of taps[k][p] buffer[p + k line]. Behind `width` - 1 lines of what came before, a buffer has room for kPiece floats.
#include "cpu.h"

#include "../activations/functions.h"
#include "../cpu/row_simd.h"

namespace precast::causal_conv1d::PRECAST_CPU_LEVEL {
namespace {

using namespace ::precast::PRECAST_CPU_LEVEL;

constexpr int64_t kTile = kTileChannels, kPiece = 16 * kTile, kBefore = (kMostWidth - 1) * kTile;

struct Buffer {
  alignas(64) float at[kBefore + kPiece + kTile];
};

// What positions are multiplied with, which repeats after kTile of them: by the taps' distance, and the bias.
struct Taps {
  alignas(64) float at[kMostWidth + 1][kTile];
};

PRECAST_INLINE int64_t up_to_lanes(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

template <class T>
PRECAST_INLINE float number(const T* from) {
  return first_lane(load_part(from, 1).part[0]);
}

// `count` numbers, `step` apart, and zeros up to `room`.
template <class T>
PRECAST_RARE void read_line(const T* from, int64_t step, int64_t count, float* to, int64_t room) {
  for (int64_t i = 0; i < room; i += kLanes) {
    const int64_t rest = count - i;
    if (rest <= 0) {
      store(to + i, broadcast(0.0f));
    } else if (step == 1) {
      store(to + i, load_upto(from + i, rest));
    } else {
      T part[kLanes] = {};
      for (int64_t k = 0; k < rest && k < kLanes; ++k) part[k] = from[(i + k) * step];
      store(to + i, load(static_cast<const T*>(part)));
    }
  }
}

template <class T>
PRECAST_RARE void write_line(T* to, int64_t step, int64_t count, const float* from) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t rest = count - i;
    if (step == 1) {
      if (rest >= kLanes) {
        store(to + i, load(from + i));
      } else {
        store_part(to + i, load_part(from + i, rest), rest);
      }
      continue;
    }
    T part[kLanes];
    store(part, load_part(from + i, smaller(rest, kLanes - 1)));
    if (rest >= kLanes) store(part, load(from + i));
    for (int64_t k = 0; k < rest && k < kLanes; ++k) to[(i + k) * step] = part[k];
  }
}

// A tile: some channels, and how its lines lie in memory.
template <class T>
struct Tile {
  int64_t channel, channels;  // the first, and how many
  int64_t line;               // floats of a line
  int64_t piece;              // lines of a piece
  int64_t before;             // width - 1
  bool along;

  PRECAST_METHOD Tile(int64_t index, int64_t all, int width, bool is_along)
      : channel(is_along ? index : index * kTile),
        channels(is_along ? 1 : smaller(kTile, all - index * kTile)),
        line(is_along ? 1 : kTile),
        piece(is_along ? kPiece : kPiece / kTile),
        before(width - 1),
        along(is_along) {}

  PRECAST_METHOD T* place(const Lines& lines, int64_t batch, int64_t token) const {
    return reinterpret_cast<T*>(lines.data + batch * lines.batch + channel * lines.channel + token * lines.token);
  }
  static PRECAST_METHOD int64_t step(int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(T)); }

  // Lines of tokens from `token` on.
  PRECAST_METHOD void read(const Lines& from, int64_t batch, int64_t token, int64_t count, float* to) const {
    if (along) return read_line(place(from, batch, token), step(from.token), count, to, up_to_lanes(count));
    for (int64_t i = 0; i < count; ++i) {
      read_line(place(from, batch, token + i), step(from.channel), channels, to + i * kTile, kTile);
    }
  }
  PRECAST_METHOD void write(const Lines& to, int64_t batch, int64_t token, int64_t count, const float* from) const {
    if (along) return write_line(place(to, batch, token), step(to.token), count, from);
    for (int64_t i = 0; i < count; ++i) {
      write_line(place(to, batch, token + i), step(to.channel), channels, from + i * kTile);
    }
  }

  // Floats of `count` lines, up to whole lanes.
  PRECAST_METHOD int64_t floats(int64_t count) const { return up_to_lanes(count * line); }
};

// The taps in the order of the tokens, or from the newest to the oldest.
template <class T, class P>
void read_taps(const Tile<T>& tile, const P* weight, const P* bias, Taps& taps, bool newest_first) {
  const int64_t width = tile.before + 1;
  for (int64_t k = 0; k <= width; ++k) {
    for (int64_t i = 0; i < kTile; ++i) {
      const int64_t at = tile.channel + (tile.along ? 0 : i), tap = newest_first ? width - 1 - k : k;
      float value = 0.0f;
      if (tile.along || i < tile.channels) {
        value = k < width ? number(weight + at * width + tap) : bias != nullptr ? number(bias + at) : 0.0f;
      }
      taps.at[k][i] = value;
    }
  }
}

template <class T>
PRECAST_RARE void read_taps(const Tile<T>& tile, const char* weight, const char* bias, bool wide, Taps& taps,
                            bool newest_first = false) {
  if (wide)
    return read_taps(tile, reinterpret_cast<const float*>(weight), reinterpret_cast<const float*>(bias), taps,
                     newest_first);
  read_taps(tile, reinterpret_cast<const T*>(weight), reinterpret_cast<const T*>(bias), taps, newest_first);
}

// result[p] = bias + sum over k of taps[k][p] from[p + k line], for `floats` positions.
PRECAST_RARE void convolve(const Taps& taps, int64_t width, int64_t line, const float* from, int64_t floats, bool bias,
                           float* result) {
  for (int64_t p = 0; p < floats; p += kLanes) {
    const int64_t lane = p % kTile;
    Floats z = bias ? load(taps.at[width] + lane) : broadcast(0.0f);
    for (int64_t k = 0; k < width; ++k) z = fma(load(taps.at[k] + lane), load(from + p + k * line), z);
    store(result + p, z);
  }
}

PRECAST_RARE void silu(float* z, int64_t floats) {
  for (int64_t p = 0; p < floats; p += kLanes) {
    const Floats x = load(z + p);
    store(z + p, x * sigmoid(x).below);
  }
}

// g *= the slope of silu at z.
PRECAST_RARE void times_slope(const float* z, float* g, int64_t floats) {
  for (int64_t p = 0; p < floats; p += kLanes) {
    const Floats x = load(z + p);
    const Share s = sigmoid(x);
    store(g + p, load(g + p) * s.below * fma(bounded(x, kSharp), s.above, broadcast(1.0f)));
  }
}

PRECAST_RARE void fill_zeros(float* to, int64_t floats) {
  for (int64_t p = 0; p < floats; p += kLanes) store(to + p, broadcast(0.0f));
}

// The last lines of a buffer with `count` new ones become those before the next.
template <class T>
PRECAST_INLINE void keep_last(const Tile<T>& tile, Buffer& buffer, int64_t count) {
  float* const to = buffer.at + kBefore - tile.before * tile.line;
  const float* const from = to + count * tile.line;
  for (int64_t p = 0; p < tile.before * tile.line; ++p) to[p] = from[p];
}

template <class T>
void forward_tile(const ForwardTiles& work, int64_t index) {
  const Walk& walk = work.tiles.walk;
  const Tile<T> tile(index, walk.channels, walk.width, walk.along != 0);
  Taps taps;
  read_taps(tile, walk.weight, walk.bias, walk.wide != 0, taps);
  Buffer x, y;
  float* const before = x.at + kBefore - tile.before * tile.line;
  for (int64_t i = 0; i < work.tiles.count; ++i) {
    const Segment& segment = work.tiles.segments[i];
    fill_zeros(x.at, kBefore);
    if (segment.initial >= 0 && walk.initial.data != nullptr) {
      float lines[kBefore];
      tile.read(walk.initial, segment.initial, 0, tile.before, lines);
      for (int64_t p = 0; p < tile.before * tile.line; ++p) before[p] = lines[p];
    }
    for (int64_t t = segment.begin; t < segment.end; t += tile.piece) {
      const int64_t count = smaller(tile.piece, segment.end - t), floats = tile.floats(count);
      tile.read(walk.x, segment.row, t, count, x.at + kBefore);
      if (segment.padding) {
        fill_zeros(y.at, floats);
      } else {
        convolve(taps, walk.width, tile.line, before, floats, true, y.at);
        if (walk.silu) silu(y.at, floats);
      }
      tile.write(work.y, segment.row, t, count, y.at);
      keep_last(tile, x, count);
    }
    if (segment.final >= 0 && work.final.data != nullptr) {
      tile.write(work.final, segment.final, 0, tile.before, before);
    }
  }
}

// sums[k][lane] += from[p + k line] g[p]; sums[width] += g[p].
PRECAST_RARE void add_products(const float* from, const float* g, int64_t width, int64_t line, int64_t floats,
                               double (&sums)[kMostWidth + 1][kTile]) {
  for (int64_t k = 0; k <= width; ++k) {
    for (int64_t lane = 0; lane < smaller(kTile, floats); lane += kLanes) {
      Floats sum = broadcast(0.0f);
      for (int64_t p = lane; p < floats; p += kTile) {
        sum = k < width ? fma(load(from + p + k * line), load(g + p), sum) : sum + load(g + p);
      }
      float part[kLanes];
      store(part, sum);
      for (int64_t e = 0; e < kLanes; ++e) sums[k][lane + e] += static_cast<double>(part[e]);
    }
  }
}

// Stores the sums of a tile in one dtype.
template <class T, class P>
void write_sums(const Tile<T>& tile, const Walk& walk, const double (&sums)[kMostWidth + 1][kTile], P* to) {
  const int64_t width = walk.width;
  for (int64_t k = 0; k <= width; ++k) {
    if (k == width && walk.bias == nullptr) break;
    for (int64_t i = 0; i < tile.channels; ++i) {
      double total = sums[k][i];
      for (int64_t lane = 1; tile.along && lane < kTile; ++lane) total += sums[k][lane];
      P* const place = k < width ? to + (tile.channel + i) * width + k : to + walk.channels * width + tile.channel + i;
      store_part(place, broadcast(static_cast<float>(total)), 1);
    }
  }
}

// What is finished of a sequence trails what is read by width - 1 tokens, and begins with the initial state.
template <class T>
void backward_tile(const BackwardTiles& work, int64_t index) {
  const Walk& walk = work.tiles.walk;
  const Tile<T> tile(index, walk.channels, walk.width, walk.along != 0);
  Taps taps, back;
  read_taps(tile, walk.weight, walk.bias, walk.wide != 0, taps);
  read_taps(tile, walk.weight, walk.bias, walk.wide != 0, back, true);
  double sums[kMostWidth + 1][kTile] = {};
  Buffer x, g, result;
  float *const before = x.at + kBefore - tile.before * tile.line, *const g_before = g.at + (before - x.at);
  for (int64_t i = 0; i < work.tiles.count; ++i) {
    const Segment& segment = work.tiles.segments[i];
    fill_zeros(x.at, kBefore);
    fill_zeros(g.at, kBefore);
    if (segment.initial >= 0 && walk.initial.data != nullptr) {
      float lines[kBefore];
      tile.read(walk.initial, segment.initial, 0, tile.before, lines);
      for (int64_t p = 0; p < tile.before * tile.line; ++p) before[p] = lines[p];
    }
    // Lines of the result, for the tokens from t - before on: first those of the initial state.
    const auto finish = [&](int64_t t, int64_t count) {
      const int64_t early = smaller(count, t < segment.begin + tile.before ? segment.begin + tile.before - t : 0);
      if (early > 0 && segment.initial >= 0 && work.grad_initial.data != nullptr) {
        tile.write(work.grad_initial, segment.initial, t - segment.begin, early, result.at);
      }
      tile.write(work.grad_x, segment.row, t + early - tile.before, count - early, result.at + early * tile.line);
    };
    for (int64_t t = segment.begin; t < segment.end; t += tile.piece) {
      const int64_t count = smaller(tile.piece, segment.end - t), floats = tile.floats(count);
      tile.read(walk.x, segment.row, t, count, x.at + kBefore);
      if (segment.padding) {
        fill_zeros(g.at + kBefore, floats);
      } else {
        tile.read(work.grad, segment.row, t, count, g.at + kBefore);
        if (walk.silu) {
          convolve(taps, walk.width, tile.line, before, floats, true, result.at);
          times_slope(result.at, g.at + kBefore, floats);
        }
        add_products(before, g.at + kBefore, walk.width, tile.line, floats, sums);
      }
      convolve(back, walk.width, tile.line, g_before, floats, false, result.at);
      finish(t, count);
      keep_last(tile, x, count);
      keep_last(tile, g, count);
    }
    fill_zeros(g.at + kBefore, kBefore);
    const int64_t floats = tile.floats(tile.before);
    convolve(back, walk.width, tile.line, g_before, floats, false, result.at);
    if (segment.final >= 0 && work.grad_final.data != nullptr) {
      tile.read(work.grad_final, segment.final, 0, tile.before, x.at + kBefore);
      for (int64_t p = 0; p < floats; p += kLanes) {
        store(result.at + p, load(result.at + p) + load(x.at + kBefore + p));
      }
    }
    finish(segment.end, tile.before);
  }
  if (walk.wide) {
    write_sums(tile, walk, sums, reinterpret_cast<float*>(work.parameters));
  } else {
    write_sums(tile, walk, sums, reinterpret_cast<T*>(work.parameters));
  }
}

template <class T>
void update_tile(const UpdateTiles& work, int64_t index) {
  const UpdateArgs& a = work.args;
  const Tile<T> tile(index, a.channels, a.width, false);
  Taps taps;
  read_taps(tile, a.weight, a.bias, a.wide != 0, taps);
  Buffer x, y;
  float* const before = x.at + kBefore - tile.before * tile.line;
  for (int64_t row = 0; row < work.rows; ++row) {
    const int64_t slot = a.slots.data != nullptr ? number_at(a.slots, row) : row;
    if (slot < 0) {
      fill_zeros(y.at, kTile);
      for (int64_t t = 0; t < a.tokens; ++t) tile.write(a.y, row, t, 1, y.at);
      continue;
    }
    // As in device.cu: where the state has the first new token.
    const bool turns = a.positions.data != nullptr;
    int64_t origin = a.length - a.tokens;
    if (turns) {
      origin = number_at(a.positions, row) % a.length;
      if (origin < 0) origin += a.length;
    }
    for (int64_t k = 0; k < tile.before; ++k) {
      int64_t at = (turns ? origin : a.length) - tile.before + k;
      if (at < 0) at += a.length;
      tile.read(a.state, slot, at, 1, before + k * kTile);
    }
    for (int64_t i = a.tokens; i < a.length && !turns; ++i) {
      tile.read(a.state, slot, i, 1, y.at);
      tile.write(a.state, slot, i - a.tokens, 1, y.at);
    }
    for (int64_t t = 0; t < a.tokens; t += tile.piece) {
      const int64_t count = smaller(tile.piece, a.tokens - t);
      tile.read(a.x, row, t, count, x.at + kBefore);
      convolve(taps, a.width, tile.line, before, count * kTile, true, y.at);
      if (a.silu) silu(y.at, count * kTile);
      tile.write(a.y, row, t, count, y.at);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t to = turns ? (origin + t + i) % a.length : origin + t + i;
        if (to >= 0) tile.write(a.state, slot, to, 1, x.at + kBefore + i * kTile);
      }
      keep_last(tile, x, count);
    }
  }
}

}  // namespace

void forward(const ForwardTiles& work, int64_t begin, int64_t end) {
  with_type(work.tiles.dtype, [&](auto zero) {
    for (int64_t i = begin; i < end; ++i) forward_tile<decltype(zero)>(work, i);
  });
}

void backward(const BackwardTiles& work, int64_t begin, int64_t end) {
  with_type(work.tiles.dtype, [&](auto zero) {
    for (int64_t i = begin; i < end; ++i) backward_tile<decltype(zero)>(work, i);
  });
}

void update(const UpdateTiles& work, int64_t begin, int64_t end) {
  with_type(work.dtype, [&](auto zero) {
    for (int64_t i = begin; i < end; ++i) update_tile<decltype(zero)>(work, i);
  });
}

}  // namespace precast::causal_conv1d::PRECAST_CPU_LEVEL
