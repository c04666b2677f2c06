// Upsample, filter and downsample images: checks, allocation, and the choice of a kernel.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../gpu/entry_points.h"
#include "entries.h"
#include "image.h"

namespace precast::image {
namespace {

// ---- which kernel serves which image ----
//
//   contiguous, filters of up to 4 x 4 taps, up and down:   1, 1 (upfirdn2d), 2, 1 (up), or 1, 2 (down) on both axes
//   everything else, float64, and channels_last             general: one result for each thread

PRECAST_ENTRIES(UPFIRDN2D_KERNELS)
constexpr int kMostTaps = 4;  // per axis, in the strip kernels
constexpr int kStripThreads = 128, kGeneralThreads = 256;

KernelFamily kernels = {"upfirdn2d", kEntries, entry::kCount};

constexpr const char* kOp = "upfirdn2d";
// The limit of sizes, steps and padding, so that an int holds every index of an upsampled image.
constexpr int64_t kMost = int64_t{1} << 30;

Axis check_axis(const char* name, int64_t in, int64_t taps, int64_t up, int64_t down, int64_t pad0, int64_t pad1) {
  PRECAST_CHECK(up >= 1 && down >= 1, "%s: up_%s is %lld and down_%s is %lld; needed 1 or more", kOp, name,
                printable(up), name, printable(down));
  const auto fits = [](int64_t value) { return value <= kMost && value >= -kMost; };
  PRECAST_CHECK(fits(in) && fits(up) && fits(down) && fits(pad0) && fits(pad1) && fits(in * up),
                "%s: along %s a size, a step or a padding is beyond 2^30", kOp, name);
  const int64_t padded = in * up + pad0 + pad1;
  PRECAST_CHECK(padded >= taps && padded <= kMost,
                "%s: along %s the image has %lld pixels after upsampling and padding; needed at least the %lld taps of "
                "the filter and at most 2^30",
                kOp, name, printable(padded), printable(taps));
  const int64_t out = (padded - taps) / down + 1;
  return {static_cast<int>(in), static_cast<int>(out),  static_cast<int>(taps),
          static_cast<int>(up), static_cast<int>(down), static_cast<int>(pad0)};
}

struct Call {
  int number;
  int32_t device;
  bool last;         // memory in the order of channels_last
  bool wide_filter;  // float64
  bool flip;
  double gain;
  int64_t sizes[4];  // of y
  Axis vertical, horizontal;
};

// The elements from one image, channel, row and column to the next.
void strides_of(int64_t channels, int64_t height, int64_t width, bool last, long long (&strides)[4]) {
  strides[0] = channels * height * width;
  strides[1] = last ? 1 : height * width;
  strides[2] = last ? channels * width : width;
  strides[3] = last ? channels : 1;
}

// ---- the two devices ----

// Longer strips read fewer pixels twice; more strips give more threads.
int64_t strip_rows_of(int64_t groups_of_all_rows, int32_t device) {
  constexpr int64_t kResident = 768, kWaves = 4;
  int64_t rows = 64;
  while (rows > 8 && groups_of_all_rows / rows < multiprocessors(device) * kResident * kWaves) rows /= 2;
  return rows;
}

// Splits images, or the planes of all images, into launches whose work 32 bits can count.
template <class Body>
void for_groups(int64_t total, int64_t each, const Body& body) {
  constexpr int64_t kMostWork = (int64_t{1} << 31) - 1;
  PRECAST_CHECK(each <= kMostWork, "%s: an image of the result has %lld pixels; needed fewer than 2^31", kOp,
                printable(each));
  const int64_t group = kMostWork / each;
  for (int64_t first = 0; first < total; first += group) body(first, total - first < group ? total - first : group);
}

int kernel_for(bool strips, const Axis& axis, int number) {
  if (number == kFloat64) return entry::upfirdn2d_general_f64;
  const ByDType kernel = !strips          ? PRECAST_BY_DTYPE(upfirdn2d_general, )
                         : axis.up == 2   ? PRECAST_BY_DTYPE(upfirdn2d_up, )
                         : axis.down == 2 ? PRECAST_BY_DTYPE(upfirdn2d_down, )
                                          : PRECAST_BY_DTYPE(upfirdn2d, );
  return kernel[static_cast<DType>(number)];
}

void run_cuda(const Call& call, const Tensor& x, const Tensor& filter, const Tensor& y) {
  const int64_t images = call.sizes[0], channels = call.sizes[1], height = call.vertical.out;
  const int64_t width = call.horizontal.out, bytes = bytes_of(call.number);
  const Axis &v = call.vertical, &h = call.horizontal;
  const Tensor from = ordered(x, call.last);
  const char* const pixels = static_cast<const char*>(from.data());
  char* const results = static_cast<char*>(y.mutable_data());
  UpfirdnArgs args = {};
  args.filter = static_cast<const char*>(filter.data());
  args.channels = static_cast<unsigned>(channels);
  strides_of(channels, v.in, h.in, call.last, args.x_strides);
  strides_of(channels, height, width, call.last, args.y_strides);
  args.vertical = v;
  args.horizontal = h;
  args.gain = call.gain;
  args.flip = call.flip ? 1 : 0;
  args.dtype = call.number;
  args.wide_filter = call.wide_filter ? 1 : 0;
  args.channels_last = call.last ? 1 : 0;
  const int64_t columns = kColumnBytes / bytes;
  args.step = static_cast<int>(columns);
  while (width % args.step != 0) args.step /= 2;
  const bool halves = bytes == 2 && reinterpret_cast<uintptr_t>(pixels) % 4 == 0;
  args.read = !halves                              ? kSingles
              : h.in % 2 == 0                      ? kWords
              : v.up == 2 && from.numel() % 2 == 0 ? kSharedWords  // no word ends beyond x
                                                   : kSingles;
  const bool alike = v.up == h.up && v.down == h.down && v.up * v.down <= 2;
  const bool strips = !call.last && call.number != kFloat64 && alike && v.taps <= kMostTaps && h.taps <= kMostTaps;
  const int64_t groups = (width + columns - 1) / columns,
                most = strip_rows_of(groups * images * channels * height, call.device),
                tall = height + (v.up == 2 ? v.pad & 1 : 0), split = (tall + most - 1) / most;
  args.strip_rows = static_cast<int>((tall + 2 * split - 1) / (2 * split) * 2);
  args.strips = static_cast<int>((tall + args.strip_rows - 1) / args.strip_rows);
  // Planes of all images are treated alike; with channels_last, an image is the unit of memory.
  const int64_t total = call.last ? images : images * channels, step = call.last ? 0 : 1;
  const int64_t outputs = strips ? groups * args.strips : (call.last ? channels : 1) * height * width;
  const int threads = strips ? kStripThreads : kGeneralThreads;
  const int entry = kernel_for(strips, v, call.number);
  if (!call.last) args.channels = 1;  // general: an image is a plane
  if (!call.last) args.x_strides[0] = args.x_strides[1];
  if (!call.last) args.y_strides[0] = args.y_strides[1];
  void* arguments[] = {&args};
  for_groups(total, outputs, [&](int64_t first, int64_t count) {
    args.x = pixels + first * args.x_strides[step] * bytes;
    args.y = results + first * args.y_strides[step] * bytes;
    args.outputs = static_cast<unsigned>(count * outputs);
    launch(kernels, call.device, entry,
           {static_cast<uint32_t>((count * outputs + threads - 1) / threads), 1, static_cast<uint32_t>(threads)},
           arguments);
  });
}

// ---- the CPU: the filter as terms (cpu.h) ----

double tap_of(const Call& call, const void* filter, int y, int x) {
  const int rows = call.vertical.taps, columns = call.horizontal.taps;
  const int64_t at = int64_t{call.flip ? y : rows - 1 - y} * columns + (call.flip ? x : columns - 1 - x);
  return call.wide_filter ? static_cast<const double*>(filter)[at]
                          : static_cast<double>(static_cast<const float*>(filter)[at]);
}

// The tap whose column and row, divided by it, have the filter as their product; or -1 if it is no product. The least
// of the taps keeps binomial filters exact. One that is far below the others could be a rounding.
int64_t pivot_of(const Call& call, const void* filter) {
  const int rows = call.vertical.taps, columns = call.horizontal.taps;
  double largest = 0, least = INFINITY;
  const auto each = [&](const auto& body) {
    for (int y = 0; y < rows; ++y) {
      for (int x = 0; x < columns; ++x) body(y, x, tap_of(call, filter, y, x));
    }
  };
  each([&](int, int, double tap) { largest = std::fmax(largest, std::fabs(tap)); });
  int64_t pivot = -1;
  each([&](int y, int x, double tap) {
    const double size = std::fabs(tap);
    if (size < least && size > 1e-6 * largest) least = size, pivot = int64_t{y} * columns + x;
  });
  if (pivot < 0) return -1;
  const int top = static_cast<int>(pivot / columns), left = static_cast<int>(pivot % columns);
  const double unit = call.number == kFloat64 ? 4.4e-16 : 2.4e-7, at = tap_of(call, filter, top, left);
  bool fits = true;
  each([&](int y, int x, double tap) {
    const double product = tap_of(call, filter, y, left) * tap_of(call, filter, top, x), other = tap * at;
    fits = fits && std::fabs(product - other) <= unit * std::fabs(other);
  });
  return fits ? pivot : -1;
}

Factor factor_of(double value) { return {value, static_cast<float>(value)}; }

// A tap along a row: result `phase` reads pixel `at` with it.
struct Meeting {
  int64_t phase, at;
  int tap;
};

// Fills the tables of `work`, whose memory is the caller's.
void plan_taps(const Call& call, const void* filter, Meeting* meetings, Tap* taps, Group* groups, Phase* phases,
               Factor* columns, UpfirdnWork* work) {
  const Axis& h = call.horizontal;
  const int rows = call.vertical.taps;
  const int64_t pivot = pivot_of(call, filter), left = pivot % h.taps, top = pivot / h.taps;
  for (int x = 0; x < (pivot < 0 ? h.taps : 1); ++x) {
    for (int y = 0; y < rows; ++y) {
      const double tap = tap_of(call, filter, y, static_cast<int>(pivot < 0 ? x : left));
      const double divisor = pivot < 0 ? 1.0 : tap_of(call, filter, static_cast<int>(top), static_cast<int>(left));
      columns[x * rows + y] = factor_of(tap / divisor);
    }
  }
  int count = 0;
  for (int tap = 0; tap < h.taps; ++tap) {
    for (int64_t phase = 0; phase < work->results && phase < h.out; ++phase) {
      const int64_t place = phase * h.down - h.pad + tap;
      if (place % h.up == 0) meetings[count++] = {phase, place / h.up, tap};
    }
  }
  // A group has one phase, one column of factors and one buffer of pixels, or two halves.
  const auto down = [&](int64_t at) { return at >= 0 ? at / work->every : -((work->every - 1 - at) / work->every); };
  const auto slot = [&](int64_t at) { return static_cast<int>(at - down(at) * work->every); };
  std::sort(meetings, meetings + count, [&](const Meeting& a, const Meeting& b) {
    if (a.phase != b.phase) return a.phase < b.phase;
    if (!work->halves && slot(a.at) != slot(b.at)) return slot(a.at) < slot(b.at);
    return a.at < b.at;
  });
  // One buffer serves all phases if it is wide enough.
  int64_t least = h.in, most = -1 - kSpan;
  for (int i = 0; i < count; ++i)
    least = std::min(least, down(meetings[i].at)), most = std::max(most, down(meetings[i].at));
  work->shared = pivot >= 0 && most - least <= kSpan && (work->every == 1 || work->halves);
  int group = -1;
  for (int i = 0; i < count; ++i) {
    const Meeting& m = meetings[i];
    const int64_t at = down(m.at);
    const bool another = i == 0 || m.phase != meetings[i - 1].phase;
    if (another) phases[work->phase_count++] = {static_cast<int>(m.phase), group + 1, group + 1};
    const int here = work->halves ? 0 : slot(m.at);
    if (another || pivot < 0 || here != groups[group].slot || at - groups[group].low > kSpan) {
      groups[++group] = {i, i, pivot < 0 ? m.tap : 0, static_cast<int>(work->shared ? least : at), here};
      phases[work->phase_count - 1].last_group = group + 1;
    }
    groups[group].last = i + 1;
    const int place = static_cast<int>(at) - groups[group].low;
    work->span = std::max(work->span, place);
    const double factor = pivot < 0 ? 1.0 : tap_of(call, filter, static_cast<int>(top), m.tap);
    taps[i] = {factor_of(factor * call.gain), place, work->halves ? slot(m.at) : 0};
  }
  work->taps = taps;
  work->groups = groups;
  work->phases = phases;
  work->columns = columns;
}

int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

void run_cpu(const Call& call, const Tensor& x, const Tensor& filter, const Tensor& y) {
  constexpr int64_t kFewChannels = 8;  // with steps, a vector would be mostly empty
  const Axis &v = call.vertical, &h = call.horizontal;
  UpfirdnWork work = {};
  const int divisor = common_divisor(h.up, h.down);
  work.results = h.up / divisor;
  work.vertical_phases = v.up / common_divisor(v.up, v.down);
  work.every = h.down / divisor;
  work.halves = work.every == 2 && call.number != kFloat64 && (!call.last || call.sizes[1] <= kChannels);
  const bool one = work.results == 1 && (work.every == 1 || work.halves);
  const bool inner = call.last && (call.sizes[1] >= kFewChannels || one);
  work.channels = inner ? call.sizes[1] : 1;
  work.vertical = v;
  work.horizontal = h;
  work.dtype = call.number;
  const int64_t taps = h.taps, bytes = taps * static_cast<int64_t>(sizeof(Meeting) + sizeof(Tap) + sizeof(Group) +
                                                                   sizeof(Phase) + v.taps * sizeof(Factor));
  const int64_t size = (bytes + 7) / 8;
  const Tensor tables = empty(&size, 1, float64_code(), x);
  Factor* const columns = static_cast<Factor*>(tables.mutable_data());
  Tap* const of_taps = reinterpret_cast<Tap*>(columns + taps * v.taps);
  Meeting* const meetings = reinterpret_cast<Meeting*>(of_taps + taps);
  Group* const groups = reinterpret_cast<Group*>(meetings + taps);
  plan_taps(call, filter.data(), meetings, of_taps, groups, reinterpret_cast<Phase*>(groups + taps), columns, &work);
  const Tensor from = ordered(x, inner), to = inner || !call.last ? another(y) : empty_ordered(call.sizes, 4, false, y);
  work.x = from.data();
  work.y = to.mutable_data();
  if (work.phase_count < std::min(work.results, h.out)) {
    memset(work.y, 0, static_cast<size_t>(y.numel() * bytes_of(call.number)));
  }
  const int64_t rows = call.sizes[0] * (inner ? channel_blocks(work) : call.sizes[1]) * v.out;
  // With AVX-512: what a row costs, and a result with its taps.
  constexpr int64_t kRowPs = 30'000, kResultPs = 150, kTapPs = 20;
  const int64_t each = kResultPs + kTapPs * (taps + v.taps),
                width = inner ? std::min<int64_t>(work.channels, kChannels) : 1;
  const UpfirdnFunction function = PRECAST_AT_CPU_LEVEL(image, upfirdn2d);
  parallel_rows(rows, kRowPs + each * h.out * width, [&](int64_t begin, int64_t end) { function(work, begin, end); });
  if (call.last && !inner) PRECAST_TORCH(aoti_torch_copy_(y.get(), to.get(), 0));
}

// ---- the op, the same for both devices ----

// Models that were converted to a narrow dtype have narrow filters.
Tensor as_float32(const Tensor& filter) {
  if (filter.dtype_code() == float32_code()) return contiguous(filter);
  Tensor wide = empty(filter.sizes(), filter.dim(), float32_code(), filter);
  PRECAST_TORCH(aoti_torch_copy_(wide.get(), filter.get(), 0));
  return wide;
}

using Run = void (*)(const Call&, const Tensor& x, const Tensor& filter, const Tensor& y);

template <Run run>
Tensor upfirdn2d_op(const Tensor& x, const Tensor& filter, int64_t up_x, int64_t up_y, int64_t down_x, int64_t down_y,
                    int64_t pad_x0, int64_t pad_x1, int64_t pad_y0, int64_t pad_y1, bool flip, double gain) {
  Call call = {};
  call.number = check_number(kOp, x);
  call.device = x.device_index();
  PRECAST_CHECK(x.dim() == 4 && x.sizes()[2] > 0 && x.sizes()[3] > 0,
                "%s: x has shape %s; needed (images, channels, height, width) with at least one pixel", kOp,
                shape_of(x).text);
  PRECAST_CHECK(filter.dim() == 2 && filter.numel() > 0 && filter.numel() <= kMost,
                "%s: filter has shape %s; needed (height, width) with at least one tap", kOp, shape_of(filter).text);
  const int32_t code = filter.dtype_code();
  const int taps_number = number_of(code);
  call.wide_filter = taps_number == kFloat64;
  PRECAST_CHECK(taps_number >= 0 && (!call.wide_filter || call.number == kFloat64),
                "%s: filter is %s and x is %s; needed a float32 filter or a narrower one%s", kOp, dtype_name(code),
                dtype_name(x.dtype_code()), call.number == kFloat64 ? ", or float64" : "");
  check_device(kOp, {"filter", filter}, x);
  const int64_t *sizes = x.sizes(), *taps = filter.sizes();
  call.vertical = check_axis("y", sizes[2], taps[0], up_y, down_y, pad_y0, pad_y1);
  call.horizontal = check_axis("x", sizes[3], taps[1], up_x, down_x, pad_x0, pad_x1);
  call.flip = flip;
  call.gain = gain;
  call.last = is_channels_last(x);
  call.sizes[0] = sizes[0];
  call.sizes[1] = sizes[1];
  call.sizes[2] = call.vertical.out;
  call.sizes[3] = call.horizontal.out;
  Tensor y = empty_ordered(call.sizes, 4, call.last, x);
  if (y.numel() > 0) run(call, x, call.wide_filter ? contiguous(filter) : as_float32(filter), y);
  return y;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("upfirdn2d", "CPU", upfirdn2d_op<run_cpu>),
    PRECAST_IMPLEMENTATION("upfirdn2d", "CUDA", upfirdn2d_op<run_cuda>),
};
PRECAST_FAMILY(upfirdn2d, kImplementations, &kernels);

}  // namespace
}  // namespace precast::image
