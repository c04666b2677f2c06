// The CPU kernels without torch, for machines that torch does not run on or runs on slowly: fixed inputs, every family
// and format, results to a file. The same program for every level of a machine; test_qemu.py compares the files.
//
//   levels LEVEL FILE     by the library's own choice among levels; "" for the best. Prints the level that was used.
//   levels unchecked      the last level of all, whatever the processor: what the choice protects from.
//   levels huge           a parameter of more elements than 31 bits count, at its ends and around that number.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "activations/cpu.h"
#include "cpu/cpu_level.h"
#include "cpu_optim/cpu.h"
#include "host/checks.h"
#include "multi_tensor/rules.h"
#include "norm/cpu.h"
#include "rotary/cpu.h"
#include "softmax/cpu.h"

void precast::fail(const char* format, ...) {  // torch.cpp has the product's
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw std::runtime_error(text);
}

namespace {

using Bytes = std::vector<unsigned char>;

constexpr int kTypes = 3;  // float32, float16, bfloat16: the numbers of precast::DType
constexpr int kSize[kTypes] = {4, 2, 2};

uint32_t state;

uint32_t random_bits() {  // xorshift
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}

// Numbers between 2^-5 and 2^5 of either sign; with `wild`, any bits: infinities, NaN, subnormal numbers.
Bytes numbers(int type, int64_t count, bool wild = false) {
  static const int kMantissa[kTypes] = {23, 10, 7}, kBias[kTypes] = {127, 15, 127};
  Bytes result(static_cast<size_t>(count) * kSize[type]);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = random_bits(), exponent = kBias[type] - 5 + random_bits() % 10;
    const uint32_t sign = bits >> 31 << (8 * kSize[type] - 1), mantissa = bits & ((1u << kMantissa[type]) - 1);
    const uint32_t number = wild ? bits : sign | exponent << kMantissa[type] | mantissa;
    memcpy(&result[static_cast<size_t>(i) * kSize[type]], &number, kSize[type]);
  }
  return result;
}

Bytes positive(Bytes floats) {
  for (size_t i = 3; i < floats.size(); i += 4) floats[i] &= 0x7f;
  return floats;
}

FILE* out;

void write(const std::string& name, int type, const Bytes& data) {
  fprintf(out, "%s %d %zu\n", name.c_str(), type, data.size() / kSize[type]);
  fwrite(data.data(), 1, data.size(), out);
}

precast::cpu_optim::Step step(bool flag) {
  precast::cpu_optim::Step s = {};
  s.grad_scale = 0.75f;
  s.beta1 = {0.9f, -2.4e-8f}, s.beta2 = {0.999f, -1.3e-8f}, s.decay = {flag ? 0.99999f : 1.0f, 1.7e-9f};
  s.rest1 = 0.1f, s.rest2 = 0.001f;
  s.l2 = flag ? 0.0f : 0.01f;
  s.minus_step_size = -3.7e-3f, s.root_scale = 18.3f, s.eps = 1e-8f;
  s.momentum = s.beta1;
  s.flags = flag ? precast::rules::kNesterov : 0;
  return s;
}

using Update = precast::cpu_optim::UpdateFunction;

// Which of the three states each rule is run with: Adam, AMSGrad, SGD, with momentum, Adagrad, Lion.
constexpr struct {
  const char* name;
  int rule;
  bool states[precast::cpu_optim::kStates];
} kRules[] = {{"adam", precast::rules::Adam::kNumber, {true, true, false}},
              {"amsgrad", precast::rules::Adam::kNumber, {true, true, true}},
              {"sgd", precast::rules::Sgd::kNumber, {false, false, false}},
              {"momentum", precast::rules::Sgd::kNumber, {true, false, false}},
              {"adagrad", precast::rules::Adagrad::kNumber, {true, false, false}},
              {"lion", precast::rules::Lion::kNumber, {true, false, false}}};

void optimizers(Update update) {
  using precast::cpu_optim::Type;
  constexpr int64_t kCount = 1003;  // three blocks, and eleven lanes of a vector
  auto type = [](int number) { return static_cast<Type>(number); };
  for (const auto& which : kRules) {
    for (int mix = 0; mix < kTypes * kTypes * 2; ++mix) {
      const int param = mix % 3, grad = mix / 3 % 3, copy = 1 + mix % 2;
      const bool wild = mix >= 9;
      Bytes p = numbers(param, kCount), g = numbers(grad, kCount, wild), c(kCount * 2 + 64);
      Bytes states[] = {numbers(0, kCount), positive(numbers(0, kCount)), positive(numbers(0, kCount))};
      precast::cpu_optim::Slot slot = {};
      slot.param = {p.data(), type(param)}, slot.grad = {g.data(), type(grad)}, slot.copy = {c.data(), type(copy)};
      for (int i = 0; i < precast::cpu_optim::kStates; ++i) {
        if (which.states[i]) slot.state[i] = {states[i].data(), type(0)};
      }
      slot.numel = kCount;
      const precast::cpu_optim::Step numbers_of_step = step(mix % 2 == 0);
      update({&slot, 1, &numbers_of_step, which.rule, mix % 4 == 0, mix % 3 == 0 ? 0.5f : 0.0f}, 0,
             precast::cpu_optim::units(kCount));
      const std::string name = std::string(which.name) + "." + std::to_string(mix);
      write(name + ".param", param, p);
      for (int i = 0; i < precast::cpu_optim::kStates; ++i) {
        if (which.states[i]) write(name + ".state" + std::to_string(i), 0, states[i]);
      }
      c.resize(kCount * 2);
      write(name + ".copy", copy, c);
    }
  }
}

constexpr int64_t kWidths[] = {1, 15, 16, 33, 1029, 2064};
constexpr int64_t kRows = 5, kChunk = 2, kChunks = 3;

// `wide`: the parameters are float32, whatever the type of the rows.
void rms_norm(int type, bool wide, int64_t width, const std::string& end) {
  const int64_t count = kRows * width;
  const Bytes weight = numbers(wide ? 0 : type, width), grad = numbers(type, count), grad_sum = numbers(type, count);
  for (int casting = 0; casting < 3; ++casting) {
    Bytes x = numbers(type, count), residual = numbers(type, count), y(x.size()), sum(x.size()), grad_x(x.size());
    precast::rms_norm::ForwardRows rows = {};
    rows.x = x.data(), rows.residual = casting == 1 ? residual.data() : nullptr, rows.weight = weight.data();
    rows.y = y.data(), rows.sum = sum.data(), rows.hidden = width;
    rows.x_stride = rows.residual_stride = rows.y_stride = rows.sum_stride = width;
    rows.eps = 1e-6f, rows.dtype = type, rows.casting = casting, rows.wide_columns = wide;
    PRECAST_AT_CPU_LEVEL(rms_norm, forward)(rows, 0, kRows);
    std::vector<double> parts(static_cast<size_t>(kChunks * width));
    precast::rms_norm::BackwardRows back = {};
    back.grad = grad.data(), back.grad_sum = casting == 1 ? grad_sum.data() : nullptr, back.x = x.data();
    back.weight = weight.data(), back.grad_x = grad_x.data(), back.parts = parts.data();
    back.rows = kRows, back.hidden = width, back.chunk_rows = kChunk;
    back.grad_stride = back.grad_sum_stride = back.x_stride = width;
    back.eps = 1e-6f, back.dtype = type, back.casting = casting, back.wide_columns = wide;
    PRECAST_AT_CPU_LEVEL(rms_norm, backward)(back, 0, kChunks);
    const int of_weight = wide ? 0 : type;
    Bytes grad_weight(weight.size());
    PRECAST_AT_CPU_LEVEL(rms_norm, reduce)
    (parts.data(), kChunks, width, grad_weight.data(), of_weight, 0, width);
    const std::string name = "rms_norm." + std::to_string(casting) + (wide ? ".wide" : "") + end;
    write(name + ".y", type, y), write(name + ".sum", type, sum), write(name + ".grad_x", type, grad_x);
    write(name + ".grad_weight", of_weight, grad_weight);
  }
}

void layer_norm(int type, bool wide, int64_t width, const std::string& end) {
  const int64_t count = kRows * width;
  const int of_weight = wide ? 0 : type;
  const Bytes x = numbers(type, count), weight = numbers(of_weight, width), bias = numbers(of_weight, width),
              grad = numbers(type, count);
  Bytes y(x.size()), grad_x(x.size()), grad_weight(weight.size()), grad_bias(bias.size());
  precast::layer_norm::ForwardRows rows = {};
  rows.x = x.data(), rows.weight = weight.data(), rows.bias = bias.data(), rows.y = y.data();
  rows.hidden = rows.x_stride = rows.y_stride = width, rows.eps = 1e-5f, rows.wide_columns = wide, rows.dtype = type;
  PRECAST_AT_CPU_LEVEL(layer_norm, forward)(rows, 0, kRows);
  std::vector<double> parts(static_cast<size_t>(2 * kChunks * width));
  precast::layer_norm::BackwardRows back = {};
  back.grad = grad.data(), back.x = x.data(), back.weight = weight.data(), back.grad_x = grad_x.data();
  back.parts = parts.data(), back.rows = kRows, back.hidden = width, back.chunk_rows = kChunk;
  back.grad_stride = back.x_stride = width, back.eps = 1e-5f, back.wide_columns = wide, back.dtype = type;
  PRECAST_AT_CPU_LEVEL(layer_norm, backward)(back, 0, kChunks);
  const auto reduce = PRECAST_AT_CPU_LEVEL(layer_norm, reduce);
  reduce(parts.data(), kChunks, 2 * width, grad_weight.data(), of_weight, 0, width);
  reduce(parts.data() + width, kChunks, 2 * width, grad_bias.data(), of_weight, 0, width);
  const std::string name = std::string("layer_norm") + (wide ? ".wide" : "") + end;
  write(name + ".y", type, y), write(name + ".grad_x", type, grad_x);
  write(name + ".grad_weight", of_weight, grad_weight), write(name + ".grad_bias", of_weight, grad_bias);
}

void softmax(int type, int64_t width, const std::string& end) {
  const int64_t count = kRows * width;
  for (int kind = 0; kind < 3; ++kind) {  // plain, masked, causal
    const Bytes x = numbers(type, count, kind == 1 && width == 33), grad = numbers(type, count);
    Bytes mask(static_cast<size_t>(count)), y(x.size()), grad_x(x.size());
    for (unsigned char& byte : mask) byte = random_bits() % 3 == 0;
    const precast::softmax::MaskRows masks = {kind == 1 ? mask.data() : nullptr, 0, 0, width};
    precast::softmax::ForwardRows rows = {x.data(), y.data(), masks, kRows, width, kRows,     1,
                                          0,        width,    1.5f,  -1e4f, type,  kind == 2, kind == 1};
    PRECAST_AT_CPU_LEVEL(softmax, forward)(rows, 0, kRows);
    precast::softmax::BackwardRows back = {grad.data(), y.data(), grad_x.data(), kRows, width, kRows,
                                           0,           width,    width,         1.5f,  type,  kind == 2};
    PRECAST_AT_CPU_LEVEL(softmax, backward)(back, 0, kRows);
    const std::string name = "softmax." + std::to_string(kind) + end;
    write(name + ".y", type, y), write(name + ".grad_x", type, grad_x);
  }
}

void activations(int type, int64_t width, const std::string& end) {
  const int64_t count = kRows * width;
  for (int kind = 0; kind < 6; ++kind) {
    const Bytes gate = numbers(type, count, width == 1029), factor = numbers(type, count), grad = numbers(type, count);
    Bytes y(gate.size()), grad_gate(gate.size()), grad_factor(gate.size());
    const int64_t pieces = kRows * precast::activations::pieces_of(width);
    precast::activations::ForwardRows rows = {};
    rows.gate = gate.data(), rows.factor = factor.data(), rows.y = y.data();
    rows.columns = rows.gate_stride = rows.factor_stride = width, rows.step = 1;
    rows.dtype = type, rows.activation = kind, rows.alpha = 1.5f, rows.limit = 2.0f;
    PRECAST_AT_CPU_LEVEL(activations, forward)(rows, 0, pieces);
    precast::activations::BackwardRows back = {};
    back.grad = grad.data(), back.gate = gate.data(), back.factor = factor.data();
    back.grad_gate = grad_gate.data(), back.grad_factor = grad_factor.data();
    back.columns = back.grad_stride = back.gate_stride = back.factor_stride = back.grad_x_stride = width;
    back.step = 1, back.dtype = type, back.activation = kind, back.alpha = 1.5f, back.limit = 2.0f;
    PRECAST_AT_CPU_LEVEL(activations, backward)(back, 0, pieces);
    const std::string name = "activations." + std::to_string(kind) + end;
    write(name + ".y", type, y), write(name + ".grad_gate", type, grad_gate);
    write(name + ".grad_factor", type, grad_factor);
  }
}

void rotary(int type, int64_t width, const std::string& end) {
  const int half = static_cast<int>(width / 2 - 1);  // something is not rotated
  const int64_t bytes = width * kSize[type];
  for (int flags = 0; flags < 8; ++flags) {  // neighbours, back, tables of float32
    const int table = (flags & precast::rotary::kWideTable) != 0 || type == 0 ? 0 : type;
    const int kept = type == 0 ? flags | precast::rotary::kWideTable : flags;
    const Bytes x = numbers(type, kRows * width), cos = numbers(table, kRows * half),
                sin = numbers(table, kRows * half);
    Bytes y(x.size());
    precast::rotary::Work work = {};
    work.query = {reinterpret_cast<const char*>(x.data()), reinterpret_cast<char*>(y.data()), 0, bytes, 0, 0, bytes, 0};
    const long long stride = static_cast<long long>(half) * kSize[table];
    work.angles = {reinterpret_cast<const char*>(cos.data()),
                   reinterpret_cast<const char*>(sin.data()),
                   nullptr,
                   stride,
                   stride,
                   kRows,
                   half,
                   kept};
    work.outer = work.query_heads = work.heads = 1, work.tokens = kRows, work.width = width, work.dtype = type;
    PRECAST_AT_CPU_LEVEL(rotary, rotate_heads)(work, 0, kRows);
    write("rotary." + std::to_string(flags) + end, type, y);
  }
}

#if defined(__x86_64__)
constexpr Update kLast = PRECAST_AT(cpu_optim, avx512, update);
#else
constexpr Update kLast = PRECAST_AT(cpu_optim, sve512, update);
#endif

void everything() {
  state = 2463534242u;
  optimizers(PRECAST_AT_CPU_LEVEL(cpu_optim, update));
  for (int type = 0; type < kTypes; ++type) {
    for (const int64_t width : kWidths) {
      const std::string end = "." + std::to_string(type) + "." + std::to_string(width);
      for (const bool wide : {false, true}) {
        if (wide && type == 0) continue;
        rms_norm(type, wide, width, end), layer_norm(type, wide, width, end);
      }
      softmax(type, width, end), activations(type, width, end);
      if (width > 1) rotary(type, width, end);
    }
  }
}

// Address space without memory: only the pages that are touched exist.
float* reserve(int64_t count) {
  void* begin = mmap(nullptr, static_cast<size_t>(count) * sizeof(float), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) precast::fail("no address space for %lld floats", static_cast<long long>(count));
  return static_cast<float*>(begin);
}

void huge() {
  using namespace precast::cpu_optim;
  constexpr int64_t kMiddle = int64_t{1} << 31, kCount = kMiddle + 77;
  float *const param = reserve(kCount), *const grad = reserve(kCount);
  Slot slot = {};
  slot.param = {param, Type::kFloat32}, slot.grad = {grad, Type::kFloat32}, slot.numel = kCount;
  Step plain = {};
  plain.grad_scale = 1.0f, plain.minus_step_size = -1.0f, plain.decay = {1.0f, 0x1p-126f};
  for (const int64_t unit : {int64_t{0}, kMiddle / kUnit - 1, kMiddle / kUnit, units(kCount) - 1}) {
    const int64_t begin = unit * kUnit, end = begin + kUnit < kCount ? begin + kUnit : kCount;
    for (int64_t i = begin; i < end; ++i) grad[i] = static_cast<float>(i % 7 + 1);
    PRECAST_AT_CPU_LEVEL(cpu_optim, update)({&slot, 1, &plain, precast::rules::Sgd::kNumber, false, 0}, unit, unit + 1);
    for (int64_t i = begin; i < end; ++i) {
      if (param[i] != -grad[i]) precast::fail("element %lld is %g", static_cast<long long>(i), param[i]);
    }
    if (end < kCount && param[end] != 0.0f) precast::fail("element %lld was written", static_cast<long long>(end));
  }
}

#define NAME(level) #level,
constexpr const char* kNames[] = {PRECAST_EACH_CPU_LEVEL(NAME)};

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count == 2 && strcmp(arguments[1], "unchecked") == 0) {
      out = fopen("/dev/null", "w");
      state = 1;
      optimizers(kLast);
      return 0;
    }
    if (count == 2 && strcmp(arguments[1], "huge") == 0) {
      huge();
      return 0;
    }
    if (count != 3) precast::fail("levels LEVEL FILE | levels unchecked | levels huge");
    precast::set_cpu_level(arguments[1]);
    out = fopen(arguments[2], "w");
    if (out == nullptr) precast::fail("cannot write %s", arguments[2]);
    everything();
    if (fclose(out) != 0) precast::fail("cannot write %s", arguments[2]);
    puts(kNames[static_cast<int>(precast::cpu_level())]);
    return 0;
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
