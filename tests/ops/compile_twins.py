"""A program for a child process: compiles every twin for GPUs that are not here, as a launch on them would, and stops.

``compile_twins.py BACKEND ARCH WARP``: ``cuda 90 32``, ``hip gfx942 64``. Triton's own compiler runs, up to the machine
code; only the driver, which would say what GPU there is, is made up. Prints how many kernels it made.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import precast.ops  # noqa: F401
from precast._dispatch import namespace
from tests.ops.run_twins import cases


class NoGpu:
    """What a launch asks of a driver before it has a kernel."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(backend: str, arch: str, warp: str) -> None:
    """Compiles what two dtypes and a few widths need."""
    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp))
    triton.runtime.driver.set_active(NoGpu(target))  # type: ignore[arg-type]
    made: set[str] = set()
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        made.add(kernel.hash)
        return kernel

    JITFunction.run = compile_only  # type: ignore[method-assign]
    for op, args in cases(torch.bfloat16, (769,)).values():
        namespace.twin(op)(*args)
    print(len(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
