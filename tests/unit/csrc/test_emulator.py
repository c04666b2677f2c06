"""The emulator of device code sees a barrier that a part of a block reaches, and goes on with the next kernel."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tests.kit import spawn
from tests.unit.csrc.conftest import HERE

KERNELS = """
#include "emulator.h"

int memory[64];

void sums(const void* address) {  // of the left and the right neighbour, twice
  int* out = *static_cast<int* const*>(address);
  const unsigned i = threadIdx.x;
  memory[i] = 1 + i;
  for (int times = 0; times < 2; ++times) {
    __syncthreads();
    const int sum = memory[(i + 63) % 64] + memory[(i + 1) % 64];
    __syncthreads();
    memory[i] = sum;
  }
  out[i] = memory[i];
}
void part_of_a_block(const void*) {
  if (threadIdx.x != 5) __syncthreads();
}
void part_of_a_warp(const void*) {
  if (threadIdx.x == 5) __syncthreads();
  __syncwarp();
}

extern "C" int launch(int which, int* out, char* said) {
  void (*const kernels[])(const void*) = {sums, part_of_a_block, part_of_a_warp};
  try {
    emulator::launch(kernels[which], &out, 1, 1, 64, 1);
  } catch (const std::runtime_error& error) {
    strcpy(said, error.what());
    return 1;
  }
  return 0;
}
"""


@pytest.mark.compiler
def test_a_barrier_that_a_part_reaches_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    library = spawn.library(tmp_path / "kernels.so", KERNELS, "-std=c++17", "-O1", "-U_FORTIFY_SOURCE", f"-I{HERE}")
    launch = ctypes.CDLL(str(library)).launch
    said = ctypes.create_string_buffer(200)
    once = [i % 64 + 1 + (i + 2) % 64 + 1 for i in range(-1, 63)]
    twice = [once[i - 1] + once[(i + 1) % 64] for i in range(64)]
    for refused in (b"", b"a barrier was reached by a part of the block", b"a shuffle of the full warp", b""):
        if refused:
            assert launch(1 if b"block" in refused else 2, None, said) == 1
            assert said.value.startswith(refused)
        out = (ctypes.c_int * 64)()
        assert launch(0, out, said) == 0 and list(out) == twice
