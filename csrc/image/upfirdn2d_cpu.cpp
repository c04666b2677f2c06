// Upsample, filter and downsample images on the CPU. Compiled once per CPU level.
//
// A row of y is computed in strips that fit the first cache. Rows of x are added up, each times its factor, into a row
// of floats with zeros on both sides. The taps along the row then read it at offsets, without any limit to check. Steps
// along the row are taken by what is stored there: every second pixel into a buffer of its own, or results of one
// phase.
#include "cpu.h"
#include "numbers.h"

namespace precast::image::PRECAST_CPU_LEVEL {
namespace {

constexpr int64_t kStrip = 4096;  // numbers in a buffer
static_assert(kStrip >= kChannels * 2 * (kSpan + 1), "a strip has room for results");

PRECAST_INLINE int64_t divided_up(int64_t a, int64_t b) { return b == 1 ? a : a >= 0 ? (a + b - 1) / b : -(-a / b); }

// What is stored in them is never read before it was written. Vectors reach up to a block beyond it.
template <class T, class Real>
struct Buffers {
  alignas(64) Real pixels[2][kStrip + kBlock];
  alignas(64) Real sums[2][kStrip + kBlock];
  alignas(64) Real adjacent[2 * kStrip + kBlock];  // pixels that go to both buffers in turns
  alignas(64) Real copied[2][kStrip + kBlock];     // rows of x, as `pixels`
};

PRECAST_INLINE float of(const Factor& factor, float) { return factor.narrow; }
PRECAST_INLINE double of(const Factor& factor, double) { return factor.wide; }

// ---- to[i] = to[i] + factor[0] from[0][i] + factor[1] from[1][i] + ..., in this order ----

constexpr int64_t kMost = 6;  // terms at a time

template <int kCount, class T, class Real>
PRECAST_RARE void add_few(const T* const* from, const Real* factors, int64_t count, bool fresh, Real* to) {
  const T* rows[kCount];
  decltype(both(Real(0))) by[kCount];
  for (int k = 0; k < kCount; ++k) rows[k] = from[k], by[k] = both(factors[k]);
  each_step<T>(count, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    auto sum = fma(by[0], span.load(rows[0] + i), fresh ? both(Real(0)) : in_order_of(load_block(to + i), rows[0]));
#pragma GCC unroll 6
    for (int k = 1; k < kCount; ++k) sum = fma(by[k], span.load(rows[k] + i), sum);
    store_block(to + i, in_memory_order(sum, rows[0]));
  });
}

// term(k, from, factor) gives term k of `terms`. Without terms the result is zero.
template <class T, class Real, class Term>
PRECAST_INLINE void add_terms(int64_t terms, const Term& term, int64_t count, bool fresh, Real* to) {
  if (terms == 0 && fresh) {
    for (int64_t i = 0; i < count; i += kStep<Real>) store_block(to + i, both(Real(0)));
  }
  for (int64_t first = 0; first < terms;) {
    const T* from[kMost];
    Real factors[kMost];
    const int64_t left = terms - first, few = left >= kMost ? kMost : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (int64_t k = 0; k < few; ++k) term(first + k, &from[k], &factors[k]);
    (few == kMost ? add_few<kMost, T, Real>
     : few == 4   ? add_few<4, T, Real>
     : few == 2   ? add_few<2, T, Real>
                  : add_few<1, T, Real>)(from, factors, count, fresh && first == 0, to);
    first += few;
  }
}

// ---- rows of x ----

constexpr int64_t kFewRows = 4;      // of a strip that are worth a copy of the rows that they read
constexpr int64_t kTogether = 1024;  // numbers of a strip of several rows

// The rows of x that meet a tap of one row of y: from row `first` on, of which the first meets `tap`.
struct Meeting {
  int64_t first, tap, count;
};

PRECAST_INLINE Meeting meeting_of(const Axis& axis, int64_t output) {
  const int64_t start = output * axis.down - axis.pad, first = divided_up(start, axis.up),
                tap = first * axis.up - start;
  return {first, tap, tap < axis.taps ? divided_up(axis.taps - tap, axis.up) : 0};
}

// Rows that are added up: `stride` elements and `step` factors apart.
template <class T>
struct Rows {
  const T* first;
  int64_t stride;
  const Factor* factors;
  int64_t step, count;
};

template <class T>
PRECAST_INLINE Rows<T> rows_of_image(const Axis& axis, int64_t output, const T* image, int64_t stride,
                                     const Factor* column) {
  const Meeting m = meeting_of(axis, output);
  const int64_t skipped = m.first < 0 ? -m.first : 0, row = m.first + skipped;
  const int64_t count = smaller(m.count - skipped, axis.in - row);
  return {image + row * stride, stride, column + m.tap + skipped * axis.up, axis.up, count > 0 ? count : 0};
}

// The sum over rows of `count` elements from element `at` on.
template <class T, class Real>
PRECAST_RARE void add_rows(const Rows<T>& rows, int64_t at, int64_t count, Real* to) {
  const auto term = [&](int64_t k, const T** from, Real* factor) PRECAST_EVERYWHERE {
    *from = rows.first + at + k * rows.stride;
    *factor = of(rows.factors[k * rows.step], Real(0));
  };
  add_terms<T>(rows.count, term, count, true, to);
}

// Both write whole vectors, so beyond `count` too.
PRECAST_INLINE void clear(float* to, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, broadcast(0.0f));
}
PRECAST_INLINE void clear(double* to, int64_t count) {
  for (int64_t i = 0; i < count; i += kDoubles) store_block(to + i, both(0.0));
}
template <class T>
PRECAST_INLINE void copy_row(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load_upto(from + i, count - i));
}
// Every second of `count` pixels, and the others, which lack one if `count` is odd. Each pixel is `channels` numbers.
template <class T>
PRECAST_RARE void copy_halves(const T* from, int64_t count, int64_t channels, float* even, float* odd) {
  if (channels > 1) {
    for (int64_t i = 0; i < count; ++i)
      copy_row(from + i * channels, channels, (i % 2 ? odd : even) + i / 2 * channels);
    if (count % 2) clear(odd + count / 2 * channels, channels);
    return;
  }
  for (int64_t i = 0; i < count; i += kBlock) {
    const Block natural = in_memory_order(load_block_upto(from + i, count - i), from);
    const Pairs pairs = separate({natural.first, natural.second});
    store(even + i / 2, pairs.first);
    store(odd + i / 2, pairs.second);
  }
}
PRECAST_INLINE void copy_halves(const double*, int64_t, int64_t, double*, double*) {}  // float64 has no halves
PRECAST_INLINE void copy_row(const double* from, int64_t count, double* to) {
  for (int64_t i = 0; i < count; i += kDoubles) store_block(to + i, SomeDoubles{count - i}.load(from + i));
}
template <class T>
PRECAST_INLINE void write_row(const float* from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; i += kLanes) store_upto(to + i, load(from + i), count - i);
}
PRECAST_INLINE void write_row(const double* from, int64_t count, double* to) {
  for (int64_t i = 0; i < count; i += kDoubles) SomeDoubles{count - i}.store(to + i, load_block(from + i));
}

// Results [begin, begin + count) of each phase, in some rows of y and some channels. In the buffers, rows are `pitch`
// apart: several short ones are worked on together.
struct Strip {
  int64_t row, rows, begin, count, channel, channels, pitch;
  int64_t top, copies, phases;  // the rows of x to copy before they are added up; 0: none, and one phase
};

// Where the buffers have a row of the strip: one vertical phase after another.
PRECAST_INLINE int64_t place_of(const Strip& strip, int64_t row) {
  if (strip.phases == 1) return row;
  const int64_t phase = row % strip.phases;
  return phase * (strip.rows / strip.phases) + smaller(phase, strip.rows % strip.phases) + row / strip.phases;
}

// The places [left, right) of a buffer are pixels of x, from `pixel` on; the others, up to `all`, are zero.
struct Window {
  int64_t left, right, all, pixel;
};

PRECAST_INLINE Window window_of(const UpfirdnWork& work, const Group& group, const Strip& strip) {
  const int64_t every = work.every, first = strip.begin + group.low, all = strip.count + work.span;
  const int64_t left = first >= 0 ? 0 : smaller(-first, all);
  const int64_t beyond = divided_up(work.horizontal.in - group.slot, every) - first;
  return {left, beyond < left ? left : smaller(beyond, all), all, (first + left) * every + group.slot};
}

// Calls row(at, count, to) for pieces of a row of x, which are the pixels of a window from element `at` on, or else
// halves(at, pixels, to, other) for pixels that go to two buffers in turns. The rest of the buffers' row becomes zero.
template <class Real, class Row, class Halves>
PRECAST_INLINE void each_piece(const UpfirdnWork& work, const Window& window, const Strip& strip, Real* to, Real* other,
                               const Row& row, const Halves& halves) {
  const int64_t channels = strip.channels, left = window.left, right = window.right;
  clear(to, left * channels);
  if (work.halves) {
    clear(other, left * channels);
    halves(window.pixel * channels, smaller(2 * (right - left), work.horizontal.in - window.pixel),
           to + left * channels, other + left * channels);
    clear(other + right * channels, (window.all - right) * channels);
  } else if (work.every == 1 && channels == work.channels) {
    row(window.pixel * channels, (right - left) * channels, to + left * channels);
  } else {
    for (int64_t i = left; i < right; ++i) {
      row((window.pixel + (i - left) * work.every) * work.channels + strip.channel, channels, to + i * channels);
    }
  }
  clear(to + right * channels, (window.all - right) * channels);
}

// Short rows of x that serve several rows of y: they are copied, those that follow each other in a sum behind each
// other. So the sums of all rows of a vertical phase are one sum of long rows.
template <class T, class Real>
PRECAST_RARE void fill_together(const UpfirdnWork& work, const T* x, const Group& group, const Strip& strip,
                                Buffers<T, Real>& buffers) {
  const Axis& v = work.vertical;
  const int64_t pitch = strip.pitch, in_row = work.horizontal.in * work.channels;
  const int64_t classes = v.down * strip.phases / v.up, each = divided_up(strip.copies, classes);
  const Window window = window_of(work, group, strip);
  const auto offset = [&](int64_t k) { return ((k % classes) * each + k / classes) * pitch; };
  const auto copy = [&](int64_t k, int64_t place) PRECAST_EVERYWHERE {
    Real *const to = buffers.copied[0] + place, *const other = buffers.copied[1] + place;
    const int64_t row = strip.top + k;
    if (row < 0 || row >= v.in) {
      clear(to, pitch);
      if (work.halves) clear(other, pitch);
      return;
    }
    const T* const from = x + row * in_row;
    each_piece(
        work, window, strip, to, other,
        [&](int64_t at, int64_t count, Real* piece) PRECAST_EVERYWHERE { copy_row(from + at, count, piece); },
        [&](int64_t at, int64_t pixels, Real* even, Real* odd)
            PRECAST_EVERYWHERE { copy_halves(from + at, pixels, strip.channels, even, odd); });
  };
  for (int64_t first = 0; first < classes; ++first) {
    for (int64_t k = first, place = first * each * pitch; k < strip.copies; k += classes, place += pitch)
      copy(k, place);
  }
  const Factor* const column = work.columns + static_cast<int64_t>(group.column) * v.taps;
  for (int64_t phase = 0; phase < smaller(strip.phases, strip.rows); ++phase) {
    const Meeting m = meeting_of(v, strip.row + phase);
    const int64_t count = divided_up(strip.rows - phase, strip.phases) * pitch;
    for (int half = 0; half < (work.halves ? 2 : 1); ++half) {
      const auto term = [&](int64_t k, const Real** from, Real* factor) PRECAST_EVERYWHERE {
        *from = buffers.copied[half] + offset(m.first - strip.top + k);
        *factor = of(column[m.tap + k * v.up], Real(0));
      };
      add_terms<Real>(m.count, term, count, true, buffers.pixels[half] + place_of(strip, phase) * pitch);
    }
  }
}

// Fills the buffers with what a group reads.
template <class T, class Real>
PRECAST_RARE void fill(const UpfirdnWork& work, const T* x, const Group& group, const Strip& strip,
                       Buffers<T, Real>& buffers) {
  if (strip.copies > 0) return fill_together(work, x, group, strip, buffers);
  const Factor* const column = work.columns + static_cast<int64_t>(group.column) * work.vertical.taps;
  const Window window = window_of(work, group, strip);
  for (int64_t k = 0; k < strip.rows; ++k) {
    Real *const to = buffers.pixels[0] + k * strip.pitch, *const other = buffers.pixels[1] + k * strip.pitch;
    const Rows<T> rows = rows_of_image(work.vertical, strip.row + k, x, work.horizontal.in * work.channels, column);
    each_piece(
        work, window, strip, to, other,
        [&](int64_t at, int64_t count, Real* piece) PRECAST_EVERYWHERE { add_rows(rows, at, count, piece); },
        [&](int64_t at, int64_t pixels, Real* even, Real* odd) PRECAST_EVERYWHERE {
          if constexpr (sizeof(T) < 8) {
            add_rows(rows, at, pixels * strip.channels, buffers.adjacent);
            copy_halves<float>(buffers.adjacent, pixels, strip.channels, even, odd);
          }
        });
  }
}

// Adds the taps of a group, or begins with them.
template <class Real, class Work>
PRECAST_RARE void add_taps(const UpfirdnWork& work, const Group& group, const Work& buffers, int64_t channels,
                           int64_t count, bool fresh, Real* sums) {
  const auto term = [&](int64_t k, const Real** from, Real* factor) PRECAST_EVERYWHERE {
    const Tap& tap = work.taps[group.first + k];
    *from = buffers.pixels[tap.area] + tap.at * channels;
    *factor = of(tap.factor, Real(0));
  };
  add_terms<Real>(group.last - group.first, term, count, fresh, sums);
}

template <class T>
PRECAST_RARE void write_joined(const float* even, const float* odd, int64_t count, T* to) {
  each_block(0, count, [&](int64_t i, auto span) PRECAST_EVERYWHERE {
    const Pairs pairs = join({load(even + i / 2), load(odd + i / 2)});
    span.store(to + i, in_order_of({pairs.first, pairs.second}, to));
  });
}

// Writes `count` results of a phase from element `to` on; `step` elements later comes the next.
template <class T, class Real>
PRECAST_INLINE void write_phase(const Real* from, int64_t count, int64_t channels, int64_t step, T* to) {
  if (step == channels) return write_row(from, count * channels, to);
  if (channels > 1) {
    for (int64_t i = 0; i < count; ++i) write_row(from + i * channels, channels, to + i * step);
    return;
  }
  T part[kStep<T>];
  for (int64_t i = 0; i < count; i += kStep<T>) {
    write_row(from + i, kStep<T>, static_cast<T*>(part));
    for (int64_t k = 0; k < kStep<T> && i + k < count; ++k) to[(i + k) * step] = part[k];
  }
}

// `y`: result strip.begin of phase 0 in the strip's first row.
template <class T, class Real>
void compute(const UpfirdnWork& work, const T* x, const Strip& strip, Buffers<T, Real>& buffers, T* y) {
  const int64_t channels = strip.channels, row = work.horizontal.out * work.channels;
  const int64_t rest = work.horizontal.out - strip.begin * work.results;  // results from here to the end of a row
  const int64_t numbers = strip.rows * strip.pitch - work.span * channels;
  const bool joined = work.results == 2 && work.phase_count == 2 && work.channels == 1 && sizeof(T) < 8;
  for (int i = 0; i < work.phase_count; ++i) {
    const Phase& phase = work.phases[i];
    const int64_t count = smaller(strip.count, divided_up(rest - phase.first, work.results));
    Real* const sums = buffers.sums[joined ? i : 0];
    for (int k = phase.first_group; k < phase.last_group; ++k) {
      if (k == 0 || !work.shared) fill(work, x, work.groups[k], strip, buffers);
      add_taps(work, work.groups[k], buffers, channels, numbers, k == phase.first_group, sums);
    }
    for (int64_t at = 0; at < strip.rows && !joined; ++at) {
      T* const to = y + phase.first * work.channels + at * row;
      write_phase(static_cast<const Real*>(sums) + place_of(strip, at) * strip.pitch, count, channels,
                  work.results * work.channels, to);
    }
  }
  if constexpr (sizeof(T) < 8) {
    for (int64_t at = 0; at < strip.rows && joined; ++at) {
      const int64_t place = place_of(strip, at) * strip.pitch;
      write_joined(buffers.sums[0] + place, buffers.sums[1] + place, smaller(2 * strip.count, rest), y + at * row);
    }
  }
}

template <class T>
void rows_of(const UpfirdnWork& work, int64_t begin, int64_t end) {
  const Axis &v = work.vertical, &h = work.horizontal;
  const int64_t blocks = channel_blocks(work), in_row = h.in * work.channels, out_row = h.out * work.channels;
  const int64_t results = divided_up(h.out, work.results);
  Buffers<T, typename RealOf<T>::Type> buffers;
  while (begin < end) {
    const int64_t part = begin / v.out, image = part / blocks, row = begin - part * v.out;
    Strip strip = {};
    strip.row = row;
    strip.channel = (part - image * blocks) * kChannels;
    strip.channels = smaller(kChannels, work.channels - strip.channel);
    const int64_t most = kStrip / strip.channels - work.span;
    strip.pitch = (smaller(most, results) + work.span) * strip.channels;
    strip.rows = smaller(strip.pitch < kTogether ? kTogether / strip.pitch : 1, smaller(end - begin, v.out - row));
    const Meeting first = meeting_of(v, row), last = meeting_of(v, row + strip.rows - 1);
    const int64_t copies = last.first + last.count - first.first, classes = v.down * work.vertical_phases / v.up;
    const bool together = v.taps > 1 && strip.rows >= kFewRows && (copies + classes) * strip.pitch <= kStrip;
    strip.top = first.first;
    strip.copies = together ? copies : 0;
    strip.phases = together ? work.vertical_phases : 1;
    const T* x = static_cast<const T*>(work.x) + image * v.in * in_row;
    T* y = static_cast<T*>(work.y) + (image * v.out + row) * out_row;
    for (; strip.begin < results; strip.begin += most) {
      strip.count = smaller(most, results - strip.begin);
      compute(work, x, strip, buffers, y + strip.begin * work.results * work.channels + strip.channel);
    }
    begin += strip.rows;
  }
}

}  // namespace

void upfirdn2d(const UpfirdnWork& work, int64_t begin, int64_t end) {
  with_number(work.dtype, [&](auto zero) { rows_of<decltype(zero)>(work, begin, end); });
}

}  // namespace precast::image::PRECAST_CPU_LEVEL
