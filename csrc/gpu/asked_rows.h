// What a tuner asks of the launches of row kernels, through precast_ask_rows (api.cpp).
#pragma once

#include <stdint.h>

namespace precast {

struct AskedRows {
  uint32_t threads = 0;  // per block; 0: the policy decides
  uint32_t cluster = 0;  // blocks per row; 0: a row is not shared by a cluster
  int early = -1;        // whether launches start early; -1: the policy decides
};
inline AskedRows asked_rows;

}  // namespace precast
