// The entry points of the device code, in the order of the image; gpu/entry_points.h explains the columns.
#pragma once

#include "../gpu/dtypes.h"

#define DELTA_RULE_OF(s, State, PICK, KERNEL)                                                             \
  KERNEL(delta_rule_##s##_64, Rule, 128, PICK(512, 384), PICK(128, 168), 0, run_tokens<State, 64, 128>)   \
  KERNEL(delta_rule_##s##_128, Rule, 128, PICK(512, 384), PICK(128, 168), 0, run_tokens<State, 128, 128>) \
  KERNEL(delta_rule_##s##_256, Rule, 256, 256, 255, 0, run_tokens<State, 256, 256>)                       \
  KERNEL(delta_rule_##s##_any, Rule, 512, 512, 128, 0, run_tokens<State, 256, 512, false>)

#define DELTA_CHUNKS_OF(f, T, NARROW, KERNEL)                                                  \
  KERNEL(delta_chunks_64_##f, ChunkArgs, 128, 512, 128, kSharedChunks, prepare_chunk<T, 64>)   \
  KERNEL(delta_chunks_128_##f, ChunkArgs, 128, 512, 128, kSharedChunks, prepare_chunk<T, 128>) \
  KERNEL(delta_states_64_##f, ChunkArgs, 128, 256, 255, kSharedStates, pass_chunks<T, 64>)     \
  KERNEL(delta_states_128_##f, ChunkArgs, 128, 256, 255, kSharedStates, pass_chunks<T, 128>)

#define DELTA_RULE_KERNELS(KERNEL)                         \
  DELTA_RULE_OF(f32, Float32, PRECAST_PICK_f32, KERNEL)    \
  DELTA_RULE_OF(bf16, BFloat16, PRECAST_PICK_bf16, KERNEL) \
  PRECAST_NARROW_DTYPES(DELTA_CHUNKS_OF, KERNEL)
