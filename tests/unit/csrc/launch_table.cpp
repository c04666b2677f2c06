// Prints which kernel a family's host code chooses for rows of every width, as ranges: its own functions answer.
// Compiled once for each, with -DFAMILY_RMS_NORM and the like. Nothing is launched, and what the file needs besides is
// left unresolved by the linker.
//
// op | unit of the width | from | to | kernel | fewest threads | most threads | threads of a block of rows, or 0 |
// stages
#include <cstdio>
#include <string>

#if defined(FAMILY_RMS_NORM)
#include "rms_norm/host.cpp"
#define NAMESPACE precast::rms_norm
#elif defined(FAMILY_RMS_NORM_BACKWARD)
#include "rms_norm/backward.cpp"
#define NAMESPACE precast::rms_norm
#elif defined(FAMILY_LAYER_NORM)
#include "layer_norm/host.cpp"
#define NAMESPACE precast::layer_norm
#elif defined(FAMILY_LAYER_NORM_BACKWARD)
#include "layer_norm/backward.cpp"
#define NAMESPACE precast::layer_norm
#elif defined(FAMILY_SOFTMAX)
#include "softmax/host.cpp"
#define NAMESPACE precast::softmax
#elif defined(FAMILY_SOFTMAX_BACKWARD)
#include "softmax/backward.cpp"
#define NAMESPACE precast::softmax
#endif

namespace precast {
int block_shared_bytes(int) { return 227 * 1024; }  // of an H200
}  // namespace precast

namespace NAMESPACE {
namespace {

struct Line {
  int kernel;
  unsigned threads, block, stages;  // block: 0 where it has one row

  bool operator==(const Line& other) const {  // threads follow the width
    return kernel == other.kernel && block == other.block && stages == other.stages;
  }
};

// Asks for every width up to far above every limit, and prints a line where anything but the threads changes.
template <class Choose>
void print_ranges(const char* op, const char* unit, const Choose& choose) {
  constexpr long kMost = 8192;
  long from = 1;
  Line open = choose(1);
  unsigned fewest = open.threads, most = open.threads;
  for (long width = 2; width <= kMost + 1; ++width) {
    const bool past = width > kMost;
    const Line line = past ? open : choose(width);
    if (!past && line == open) {
      fewest = line.threads < fewest ? line.threads : fewest;
      most = line.threads > most ? line.threads : most;
      continue;
    }
    const std::string to = past ? "" : std::to_string(width - 1);
    std::printf("%s|%s|%ld|%s|%s|%u|%u|%u|%u\n", op, unit, from, to.c_str(), kEntries[open.kernel].name, fewest, most,
                open.block, open.stages);
    open = line, from = width, fewest = most = line.threads;
  }
}

template <class Choice>
unsigned block_of(const Choice& choice) {
  return choice.rows > 1 ? choice.rows * choice.threads : 0;
}

// `choose(columns, vectors, shifted)` gives a Choice; `first` is the family's first bf16 kernel.
template <class Choose>
void print_choices(const char* op, int first, const Choose& choose) {
  const auto line = [&](int64_t columns, int64_t vectors, int64_t shifted) {
    const auto choice = choose(columns, vectors, shifted);
    return Line{first + static_cast<int>(choice.kernel), choice.threads, block_of(choice), 0};
  };
  print_ranges(op, "vectors", [&](long width) { return line(width * 8, width, 0); });
  print_ranges(op, "shifted", [&](long width) { return line(width * 8, 0, width); });
  print_ranges(op, "elements", [&](long width) { return line(width, 0, 0); });
}

#if defined(FAMILY_RMS_NORM_BACKWARD) || defined(FAMILY_LAYER_NORM_BACKWARD)
void print_walks(const char* op) {
  const auto line = [](int64_t hidden, int64_t vectors) {
    Norm norm = {};
    norm.hidden = hidden;
    norm.rows = 1 << 20;
    norm.dtype = DType::kBFloat16;
    const WalkPlan walk = choose_walk(norm, vectors, kPairAlone);
    return Line{walk_entry(norm, walk), walk.threads, block_of(walk), walk.stages};
  };
  print_ranges(op, "vectors", [&](long width) { return line(width * 8, width); });
  print_ranges(op, "elements", [&](long width) { return line(width, 0); });
}
#endif

void print_table() {
#if defined(FAMILY_RMS_NORM)
  const int first = 2 * kKernels;
  print_choices("rms_norm", first, [](int64_t columns, int64_t vectors, int64_t shifted) {
    return choose(columns, vectors, shifted, false);
  });
  print_choices("fused_add_rms_norm", first, [](int64_t columns, int64_t vectors, int64_t shifted) {
    return choose(columns, vectors, shifted, true);
  });
#elif defined(FAMILY_LAYER_NORM)
  print_choices("layer_norm", 2 * kKernels,
                [](int64_t columns, int64_t vectors, int64_t shifted) { return choose(columns, vectors, shifted); });
#elif defined(FAMILY_SOFTMAX)
  print_choices("softmax", kFirstEntry[2], [](int64_t columns, int64_t vectors, int64_t shifted) {
    return choose(columns, vectors, shifted, false, false);
  });
  print_choices("causal softmax", kFirstEntry[2], [](int64_t columns, int64_t vectors, int64_t shifted) {
    return choose(columns, vectors, shifted, true, false);
  });
#elif defined(FAMILY_SOFTMAX_BACKWARD)
  print_choices("softmax backward", 2 * kKernels,
                [](int64_t columns, int64_t vectors, int64_t shifted) { return choose(columns, vectors, shifted); });
#elif defined(FAMILY_RMS_NORM_BACKWARD)
  print_walks("rms_norm backward");
#else
  print_walks("layer_norm backward");
#endif
}

}  // namespace
}  // namespace NAMESPACE

int main() { NAMESPACE::print_table(); }
