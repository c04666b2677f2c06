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
from precast.ops.multi_tensor import ADAM, DECOUPLED, LAMB, LION
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


def step(kind: int, dtype: Any, states: int, *, masters: bool = False, norm: float = 0.0) -> None:
    """One step of an optimizer over two tensors."""
    low = [torch.ones(n, dtype=dtype) for n in (5, 4096)]
    wide = [[t.float().clone() for t in low] for _ in range(1 + states)]
    params, copies = (wide[0], low) if masters else (low, [])
    grads = [torch.ones_like(t) for t in low]
    lists = [*wide[1:], *([[]] * (3 - states))]
    steps, one = torch.zeros(2), torch.ones(1)
    places = torch.tensor([[0, 0], [0, 1]], dtype=torch.int32)
    plan = namespace.twin("multi_tensor_plan")(params, grads, *lists, copies, [], places)
    numbers = torch.full((1, 6), 0.5, dtype=torch.float64)
    namespace.twin("multi_tensor_step_")(plan, grads, steps, numbers, [one], one, one, norm, kind, DECOUPLED)
    namespace.twin("multi_tensor_forget")(plan, steps)


def lists() -> None:
    """The ops over lists."""
    step(ADAM, torch.float32, 2)
    step(ADAM, torch.bfloat16, 3, masters=True, norm=1.0)
    step(LION, torch.bfloat16, 1)
    step(LAMB, torch.float16, 3, masters=True)
    some, one = [torch.ones(9), torch.ones(7)], torch.ones(())
    namespace.twin("multi_tensor_l2norm")(some)
    namespace.twin("multi_tensor_axpby_")(some, some, some, 0.5, 2.0, one, one)


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
    lists()
    print(len(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
