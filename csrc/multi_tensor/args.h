// The structures that host.cpp and lists.cpp pass to the kernels of device.cu by value. Compiled on both sides, so it
// includes nothing.
#pragma once

namespace precast {
namespace multi_tensor {

// One parameter with its gradient and state: n elements each, dense, in the same order. `types` holds four dtypes of
// two bits each (numbers of precast::DType): param (lowest), grad, the states, copy.
struct Row {
  char* param;
  const char* grad;  // written only to unscale it
  char* first;       // momentum, exp_avg or sum; these pointers are null if the tensor is absent
  char* second;      // exp_avg_sq
  char* third;       // max_exp_avg_sq
  char* copy;        // receives the rounded parameter
  long long n;
  unsigned short types;
  unsigned short aligned;  // 1: four elements of any of the tensors can be moved at once
  unsigned short group;
  unsigned short unused;
};

// A block handles 512 elements of one tensor, and a block of a norm 8192. The device table holds the rows, then for
// either size the first block of each tensor (count + 1 entries), then the index of each tensor's step. The scratch
// memory between kernels follows: coefficients, sums of squares per tensor, and sums of squares per block of the norm.
constexpr int kThreads = 128, kPerThread = 4;
constexpr int kChunk = kThreads * kPerThread, kNormChunk = 16 * kChunk;

// What an update needs to know about one tensor. It is computed on the device, because steps, the loss scale and the
// gradients' norm are there.
struct Coefficients {
  float grad;   // multiplies the gradient
  float rate;   // the step along the direction
  float decay;  // share of the parameter that is subtracted: lr * weight_decay
  float l2;     // share of the parameter that is added to the gradient
  float one_minus_beta1;
  float one_minus_beta2;
  float root;  // 1 / sqrt(bias_correction2)
  float eps;
  float bias;  // 1 / bias_correction1
  float skip;  // not zero: nothing is written
  float extra;
  float first;  // not zero: the first step of this tensor
};

// The hyperparameters of one parameter group. Learning rates on the device replace `lr`.
struct Group {
  const float* device_lr;
  float lr, one_minus_beta1, one_minus_beta2, log_beta1, log_beta2, eps, weight_decay, extra;
};

constexpr int kGroups = 32;  // per launch

struct PrepareArgs {
  const Row* rows;
  const unsigned int* slots;
  Coefficients* coefficients;
  float* steps;  // null: every tensor is at `step`
  const float* found_inf;
  const float* grad_scale;
  const float* norm;  // of all gradients, before unscaling; null: no clipping
  float max_norm;
  float step;
  float factor;  // of the gradients
  unsigned int count;
  int first_group;
  int groups;
  int kind;
  int flags;
  Group group[kGroups];
};

struct UpdateArgs {
  const Row* rows;
  const unsigned int* first;
  const Coefficients* coefficients;
  float* parts;             // LAMB: two per block, for the parameter and for the direction
  const float* sums;        // LAMB: two per tensor
  const float* grad_scale;  // gradients are divided by it in place; null: they are only read
  unsigned int count;
  int kind;
  int flags;
};

// Sums the parts of each tensor into `sums`, `width` numbers per block; then takes the root of the sum of all.
struct SumArgs {
  const unsigned int* first;
  const float* parts;
  float* sums;
  float* total;
  unsigned int count;
  int width;
};

// out = a * factor * x + b * y, for rows whose grad is x, first is y (or null) and param is out.
struct AxpbyArgs {
  const Row* rows;
  const unsigned int* first;
  const float* factor;  // null: 1
  float* found_inf;     // set to 1 if a result is not finite; may be null
  float a, b;
  unsigned int count;
};

static_assert(sizeof(Row) == 64 && sizeof(Coefficients) == 48 && sizeof(Group) == 40, "host and device must agree");
static_assert(sizeof(PrepareArgs) == 88 + kGroups * 40 && sizeof(UpdateArgs) == 64, "host and device must agree");

}  // namespace multi_tensor
}  // namespace precast
