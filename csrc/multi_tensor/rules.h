// The update rules of the optimizers, on every device: what each needs, and its formula.
//
// A formula is written once. `x` is one element in a kernel of the GPU, and sixteen of them in one of the CPU: it has
// the parameter's states, and the operations of that device (device.cu and cpu_optim/cpu.cpp), which differ in
// rounding. A new rule is a struct here, and an entry in one of the lists below. Compiled on all sides, so it includes
// nothing.
#pragma once

#ifndef PRECAST_FORMULA  // how the device code or the CPU level declares a function
#define PRECAST_FORMULA static inline
#endif

namespace precast {
namespace rules {

// Bits of what an op does besides the rule itself.
enum Flag : int {
  kMaximize = 1,
  kDecoupled = 2,  // weight decay is separate from the gradient, and from the momentum
  kNesterov = 4,
  kAlwaysAdapt = 8,   // LAMB: adapt even without weight decay
  kUncorrected = 16,  // Adam and LAMB: the moments as they are, without bias correction
  kSummed = 32,       // LAMB: the gradient enters its average with a weight of one
};

// What most rules have. A rule begins with its number in the ops, and says what differs. They are enumerators, because
// device code keeps a constant of a class in the memory of the GPU.
struct Plain {
  enum : int { kLeast = 0, kMost = 0 };  // how many states it needs and takes, in the order of the op's lists
  enum : bool {
    kCounts = false,    // it reads how many steps there were
    kAverages = false,  // beta1 and beta2 are rates of decay, below one
    kCorrects = false,  // averages are divided by 1 - beta^steps
    kSlows = false,     // the learning rate is divided by 1 + steps * extra
  };
};

struct Adam : Plain {
  enum : int { kNumber = 0, kLeast = 2, kMost = 3 };
  enum : bool { kCounts = true, kAverages = true, kCorrects = true };

  template <class Elements>
  PRECAST_FORMULA void average(Elements& x) {
    const auto g = x.gradient();
    x.first = x.average1(x.first, g);
    x.second = x.average2_of_squares(x.second, g);
  }
  template <class Elements>
  PRECAST_FORMULA void advance(Elements& x) {
    average(x);
    auto size = x.second;
    if (x.has_third()) size = x.third = x.maximum(x.third, size);
    const auto root = x.root(size);
    x.decay();
    x.step(x.first / root);
  }
};

struct Sgd : Plain {
  enum : int { kNumber = 1, kMost = 1 };

  template <class Elements>
  PRECAST_FORMULA void advance(Elements& x) {
    auto g = x.gradient();
    if (x.has_first()) {
      x.first = x.accumulate(x.first, g);
      g = x.flags() & kNesterov ? x.add_momentum(x.first, g) : x.first;
    }
    x.decay();
    x.step(g);
  }
};

struct Adagrad : Plain {
  enum : int { kNumber = 2, kLeast = 1, kMost = 1 };
  enum : bool { kCounts = true, kSlows = true };

  template <class Elements>
  PRECAST_FORMULA void advance(Elements& x) {
    const auto g = x.gradient();
    x.first = x.add_square(x.first, g);
    if (x.flags() & kDecoupled) x.decay();
    x.step(g / x.plain_root(x.first));
  }
};

struct Lion : Plain {
  enum : int { kNumber = 3, kLeast = 1, kMost = 1 };
  enum : bool { kAverages = true };

  template <class Elements>
  PRECAST_FORMULA void advance(Elements& x) {
    const auto g = x.gradient();
    const auto between = x.average1(x.first, g);
    x.first = x.average2(x.first, g);
    x.decay();
    x.step(x.sign(between));
  }
};

// Adam's direction goes into the third state, and its sum of squares to LambApply, which is the step along it.
struct Lamb : Adam {
  enum : int { kNumber = 4, kLeast = 3 };

  template <class Elements>
  PRECAST_FORMULA void advance(Elements& x) {
    average(x);
    const auto root = x.root(x.second);
    x.third = x.add_decay(x.corrected(x.first) / root);
  }
};

struct LambApply : Plain {
  enum : int { kNumber = 5, kLeast = 3, kMost = 3 };
};

// The rules of `Rules...`. A fact of rule `number` is that of the one with this number.
template <class... Rules>
struct List {
  PRECAST_FORMULA constexpr bool has(long long number) { return ((number == Rules::kNumber) || ...); }
  PRECAST_FORMULA constexpr int least(long long number) {
    return ((number == Rules::kNumber ? int{Rules::kLeast} : 0) + ...);
  }
  PRECAST_FORMULA constexpr int most(long long number) {
    return ((number == Rules::kNumber ? int{Rules::kMost} : 0) + ...);
  }
  PRECAST_FORMULA constexpr bool counts(long long number) {
    return ((Rules::kCounts && number == Rules::kNumber) || ...);
  }
  PRECAST_FORMULA constexpr bool averages(long long number) {
    return ((Rules::kAverages && number == Rules::kNumber) || ...);
  }
  PRECAST_FORMULA constexpr bool corrects(long long number) {
    return ((Rules::kCorrects && number == Rules::kNumber) || ...);
  }
  PRECAST_FORMULA constexpr bool slows(long long number) {
    return ((Rules::kSlows && number == Rules::kNumber) || ...);
  }
};

using OneState = List<Sgd, Adagrad, Lion>;  // rules that take one state at most: they have a kernel of the GPU together
using OfLamb = List<Lamb, LambApply>;       // and so do these
using OnCpu = List<Adam, Sgd, Adagrad, Lion>;
using OnGpu = List<Adam, Sgd, Adagrad, Lion, Lamb, LambApply>;

}  // namespace rules
}  // namespace precast
