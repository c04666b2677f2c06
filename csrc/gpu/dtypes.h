// The dtypes of the kernels, for the lists of entry points (entry_points.h). Compiled on both sides, so it includes
// nothing.
//
// PRECAST_DTYPES(EACH, KERNEL) is EACH(f32, Float32, NARROW, KERNEL) and so on, in the order of precast::DType: the
// dtype in the names of entry points, its class on the GPU, and NARROW(...), which drops what only dtypes of two bytes
// have.
#pragma once

#define PRECAST_DTYPES(EACH, ...)                    \
  EACH(f32, Float32, PRECAST_LEAVE_OUT, __VA_ARGS__) \
  PRECAST_NARROW_DTYPES(EACH, __VA_ARGS__)

#define PRECAST_NARROW_DTYPES(EACH, ...)        \
  EACH(f16, Float16, PRECAST_KEEP, __VA_ARGS__) \
  EACH(bf16, BFloat16, PRECAST_KEEP, __VA_ARGS__)

#define PRECAST_LEAVE_OUT(...)
#define PRECAST_KEEP(...) __VA_ARGS__

// PRECAST_PICK_##f(wide, narrow): a number that differs between dtypes of four bytes and of two.
#define PRECAST_PICK_f32(wide, narrow) wide
#define PRECAST_PICK_f16(wide, narrow) narrow
#define PRECAST_PICK_bf16(wide, narrow) narrow
