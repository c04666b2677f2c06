// Prints which kernel a family's host code chooses for rows of every width, as ranges: its own functions answer.
// Compiled once for each, with -DFAMILY_RMS_NORM and the like. Nothing is launched, and what the file needs besides is
// left unresolved by the linker.
//
// case | op | unit of the width | from | to | kernel | fewest threads | most threads | threads of a block of rows, or 0
// | stages | fewest blocks of a row | most, or 0 if the kernel is not for clusters
//
// The case "many" has all ranges; the others have those that differ from it.
#include <cstdio>
#include <string>

#if defined(FAMILY_RMS_NORM)
#include "norm/rms_norm.cpp"
#define NAMESPACE precast::rms_norm
#elif defined(FAMILY_RMS_NORM_BACKWARD)
#include "norm/rms_norm_backward.cpp"
#define NAMESPACE precast::rms_norm
#elif defined(FAMILY_LAYER_NORM)
#include "norm/layer_norm.cpp"
#define NAMESPACE precast::layer_norm
#elif defined(FAMILY_LAYER_NORM_BACKWARD)
#include "norm/layer_norm_backward.cpp"
#define NAMESPACE precast::layer_norm
#elif defined(FAMILY_SOFTMAX)
#include "softmax/host.cpp"
#define NAMESPACE precast::softmax
#elif defined(FAMILY_SOFTMAX_BACKWARD)
#include "softmax/backward.cpp"
#define NAMESPACE precast::softmax
#endif

namespace precast {
namespace {

struct Case {
  const char* name;
  int64_t rows;
  int processors, shared_bytes;
  bool clusters;
};
constexpr Case kCases[] = {
    {"many", 1 << 20, 132, 227 * 1024, true},
    {"few", 16, 132, 227 * 1024, true},
    {"older", 1 << 20, 108, 163 * 1024, false},
};
constexpr int kCaseCount = sizeof(kCases) / sizeof(kCases[0]);
const Case* now = kCases;

}  // namespace

int multiprocessors(int) { return now->processors; }
int block_shared_bytes(int) { return now->shared_bytes; }
bool has_clusters(KernelFamily&, int) { return now->clusters; }
}  // namespace precast

namespace NAMESPACE {
namespace {

struct Line {
  int kernel;
  unsigned threads, block, stages;  // block: 0 where it has one row
  unsigned cluster;
  bool usual = false;

  bool continues(const Line& other) const {  // threads and clusters follow the width
    return kernel == other.kernel && block == other.block && stages == other.stages && usual == other.usual;
  }

  bool operator==(const Line& other) const {
    return continues(other) && threads == other.threads && cluster == other.cluster;
  }
};

// The least and the most of a number over the lines of a range.
struct Span {
  unsigned least, most;

  void add(unsigned value) {
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
};

// Asks for every width up to far above every limit, and prints ranges in which only threads and clusters change. Widths
// for which `usual` gives the same are left out.
template <class Choose, class Usual>
void print_ranges(const char* name, const char* op, const char* unit, const Choose& choose, const Usual& usual) {
  constexpr long kMost = 1 << 17;
  const auto ask = [&](long width) {
    Line line = choose(width);
    line.usual = line == usual(width);
    return line;
  };
  long from = 1;
  Line open = ask(1);
  Span threads = {open.threads, open.threads}, clusters = {open.cluster, open.cluster};
  for (long width = 2; width <= kMost + 1; ++width) {
    const bool past = width > kMost;
    const Line line = past ? open : ask(width);
    if (!past && line.continues(open)) {
      threads.add(line.threads);
      clusters.add(line.cluster);
      continue;
    }
    const std::string to = past ? "" : std::to_string(width - 1);
    if (!open.usual) {
      std::printf("%s|%s|%s|%ld|%s|%s|%u|%u|%u|%u|%u|%u\n", name, op, unit, from, to.c_str(),
                  kEntries[open.kernel].name, threads.least, threads.most, open.block, open.stages, clusters.least,
                  clusters.most);
    }
    open = line, from = width;
    threads = {line.threads, line.threads}, clusters = {line.cluster, line.cluster};
  }
}

// All ranges for many rows, then what differs in the other cases.
template <class Choose>
void print_cases(const char* op, const char* unit, const Choose& choose) {
  print_ranges(kCases[0].name, op, unit, choose, [](long) { return Line{-1, 0, 0, 0, 0}; });
  for (int one = 1; one < kCaseCount; ++one) {
    const auto in_case = [&](long width) {
      now = kCases + one;
      const Line line = choose(width);
      now = kCases;
      return line;
    };
    print_ranges(kCases[one].name, op, unit, in_case, choose);
  }
}

template <class Choice>
unsigned block_of(const Choice& choice) {
  return choice.rows > 1 ? choice.rows * choice.threads : 0;
}

#if defined(FAMILY_RMS_NORM_BACKWARD) || defined(FAMILY_LAYER_NORM_BACKWARD)
void print_walks(const char* op) {
  const auto line = [](int64_t hidden, int64_t vectors) {
    Norm norm = {};
    norm.hidden = hidden;
    norm.rows = now->rows;
    norm.dtype = DType::kBFloat16;
    const WalkPlan walk = choose_walk(kernels, norm, vectors, kPairAlone);
    return Line{walk_entry(kWalks, norm, walk), walk.threads, block_of(walk), walk.stages, walk.cluster};
  };
  print_cases(op, "vectors", [&](long width) { return line(width * 8, width); });
  print_cases(op, "elements", [&](long width) { return line(width, 0); });
}
#else
// `has` is what the call is, as the family's rules know it.
Line line_of(uint32_t has, int64_t columns, int64_t vectors, int64_t shifted) {
  const RowKernel choice = choose_row(kRules, kernels, {has, now->rows, columns, vectors, shifted, 0});
  return {choice.kernel[DType::kBFloat16], choice.threads, block_of(choice), 0, choice.cluster};
}

void print_choices(const char* op, uint32_t has) {
  print_cases(op, "vectors", [&](long width) { return line_of(has, width * 8, width, 0); });
  print_cases(op, "shifted", [&](long width) { return line_of(has, width * 8, 0, width); });
  print_cases(op, "elements", [&](long width) { return line_of(has, width, 0, 0); });
}

#if defined(FAMILY_SOFTMAX) || defined(FAMILY_SOFTMAX_BACKWARD)
// How the choices differ for rows with a mask; the gradient knows only the causal one.
void print_masked(const char* op, uint32_t has, uint32_t usual) {
  print_ranges(
      "masked", op, "vectors", [&](long width) { return line_of(has, width * 8, width, 0); },
      [&](long width) { return line_of(usual, width * 8, width, 0); });
}
#endif
#endif

void print_table() {
#if defined(FAMILY_RMS_NORM)
  print_choices("rms_norm", kNoAdd);
  print_choices("fused_add_rms_norm", kAdds);
#elif defined(FAMILY_LAYER_NORM)
  print_choices("layer_norm", 0);
#elif defined(FAMILY_SOFTMAX)
  print_choices("softmax", kPlainRow | kTwoBytes);
  print_choices("causal softmax", kCausalRow | kTwoBytes);
  print_masked("softmax", kTwoBytes, kPlainRow | kTwoBytes);
#elif defined(FAMILY_SOFTMAX_BACKWARD)
  print_choices("softmax backward", kPlainRow);
  print_masked("softmax backward", 0, kPlainRow);
#elif defined(FAMILY_RMS_NORM_BACKWARD)
  print_walks("rms_norm backward");
#else
  print_walks("layer_norm backward");
#endif
}

}  // namespace
}  // namespace NAMESPACE

int main() { NAMESPACE::print_table(); }
