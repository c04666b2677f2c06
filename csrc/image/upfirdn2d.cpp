// Upsample, filter and downsample images: checks, allocation, and the choice of a kernel.
#include "../common/entry_points.h"
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
  args.whole = width % columns == 0 ? 1 : 0;
  args.pairs = bytes == 2 && h.in % 2 == 0 && reinterpret_cast<uintptr_t>(pixels) % 4 == 0 ? 1 : 0;
  const bool alike = v.up == h.up && v.down == h.down && v.up * v.down <= 2;
  const bool strips = !call.last && call.number != kFloat64 && alike && v.taps <= kMostTaps && h.taps <= kMostTaps;
  const int64_t groups = (width + columns - 1) / columns,
                rows = strip_rows_of(groups * images * channels * height, call.device);
  args.strip_rows = static_cast<int>(rows);
  args.strips = static_cast<int>((height + rows - 1) / rows);
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

void run_cpu(const Call& call, const Tensor& x, const Tensor& filter, const Tensor& y) {
  const Tensor from = contiguous(x);
  UpfirdnWork work = {};
  work.x = from.data();
  work.filter = filter.data();
  work.y = y.mutable_data();
  work.vertical = call.vertical;
  work.horizontal = call.horizontal;
  work.x_plane = static_cast<int64_t>(call.vertical.in) * call.horizontal.in;
  work.y_plane = static_cast<int64_t>(call.vertical.out) * call.horizontal.out;
  work.gain = call.gain;
  work.dtype = call.number;
  work.flip = call.flip;
  work.wide_filter = call.wide_filter;
  const int64_t rows = call.sizes[0] * call.sizes[1] * call.vertical.out;
  const int64_t products = static_cast<int64_t>(call.horizontal.out) * call.vertical.taps * call.horizontal.taps;
  const UpfirdnFunction function = PRECAST_AT_CPU_LEVEL(image, upfirdn2d);
  parallel_for(0, rows, grain_rows(products), [&](int64_t begin, int64_t end) { function(work, begin, end); });
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

// `any_order`: the kernels write channels_last themselves.
template <Run run, bool any_order>
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
  Tensor y = empty_ordered(call.sizes, 4, call.last && any_order, x);
  if (y.numel() > 0) run(call, x, call.wide_filter ? contiguous(filter) : as_float32(filter), y);
  return any_order || !call.last ? std::move(y) : ordered(y, true);
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("upfirdn2d", "CPU", (upfirdn2d_op<run_cpu, false>)),
    PRECAST_IMPLEMENTATION("upfirdn2d", "CUDA", (upfirdn2d_op<run_cuda, true>)),
};
PRECAST_FAMILY(upfirdn2d, kImplementations, &kernels);

}  // namespace
}  // namespace precast::image
