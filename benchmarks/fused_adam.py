"""AdamW on the GPU: share of the copy rate for large parameters, and a step over a thousand small ones."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from benchmarks.asked import asked
from benchmarks.norm import FLUSH_BYTES, copy_rate, medians_ms
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

LARGE, LARGE_ELEMENTS = 40, 4096 * 4096  # 671 million elements
SMALL, SMALL_ELEMENTS = 1000, 4096
BYTES = 28  # per element: float32 reads 16 and writes 12; bfloat16 with masters reads 2 + 12 and writes 2 + 12
HOST_STEPS = 60
OPTIONS: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01}


def parameters(count: int, elements: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Random parameters with random gradients."""
    import torch

    made = [torch.randn(elements, device="cuda", dtype=dtype) for _ in range(count)]
    for param in made:
        param.grad = torch.randn_like(param)
    return made


def grad_of(param: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter; every parameter here has one."""
    assert param.grad is not None
    return param.grad


class MastersOfTorch:
    """The bfloat16 loop with torch's fused optimizer: widen the gradients, step the masters, copy back."""

    def __init__(self, params: list[torch.Tensor]) -> None:
        import torch

        self.params, self.masters = params, [param.float() for param in params]
        for master in self.masters:
            master.grad = torch.empty_like(master)
        self.optimizer = torch.optim.AdamW(self.masters, fused=True, **OPTIONS)

    def step(self) -> None:
        """Step in three passes over lists."""
        import torch

        torch._foreach_copy_([grad_of(m) for m in self.masters], [grad_of(p) for p in self.params])
        self.optimizer.step()
        torch._foreach_copy_(self.params, self.masters)


class Compiled:
    """Torch's foreach step under torch.compile. Large cases only: a thousand parameters would compile for minutes."""

    def __init__(self, params: list[torch.Tensor]) -> None:
        import torch

        optimizer = torch.optim.AdamW(params, foreach=True, capturable=True, **OPTIONS)
        self.step = torch.compile(optimizer.step)


def host_us(step: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """The median time that the host needs for a step, without waiting for the GPU."""
    import torch

    times = []
    for _ in range(HOST_STEPS):
        before()
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def large(rate: float, flush: torch.Tensor) -> Iterable[Row]:
    """671 million parameters."""
    import torch

    from precast.optim import FusedAdamW

    for low in (False, True):
        what = "bf16 with fp32 masters" if low else "fp32"
        dtype = torch.bfloat16 if low else torch.float32
        moved = LARGE * LARGE_ELEMENTS * BYTES
        makers: dict[str, Callable[[list[torch.Tensor]], Any]] = {
            "precast": functools.partial(FusedAdamW, master_weights=low, **OPTIONS),
            "torch fused": MastersOfTorch if low else functools.partial(torch.optim.AdamW, fused=True, **OPTIONS),
        }
        if not low:
            makers["torch foreach"] = functools.partial(torch.optim.AdamW, foreach=True, **OPTIONS)
            makers["torch.compile"] = Compiled
        steps = {name: make(parameters(LARGE, LARGE_ELEMENTS, dtype)).step for name, make in makers.items()}
        shares = {name: moved / (ms * 1e-3) / rate for name, ms in medians_ms(steps, flush).items()}
        del steps
        torch.cuda.empty_cache()
        target = asked("AdamW with masters" if low else "AdamW", (LARGE, LARGE_ELEMENTS)).share_text
        text = f"AdamW, 671 M parameters, {what}"
        for peer, share in shares.items():
            if peer != "precast":
                yield Row(text, shares["precast"], "share", peer, share, higher_is_better=True, target=target)


def moving(params: list[torch.Tensor]) -> Callable[[], None]:
    """Changes the parameters' gradients with every call, alternating between two sets."""
    import torch

    sets = itertools.cycle([[torch.randn_like(param) for param in params], [grad_of(param) for param in params]])

    def move() -> None:
        for param, grad in zip(params, next(sets), strict=True):
            param.grad = grad

    return move


def small(flush: torch.Tensor) -> Iterable[Row]:
    """A thousand parameters of 4096 elements: the host's time, and the replay of a graph."""
    import torch

    from precast.optim import FusedAdamW

    makers: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
        "precast": lambda params: FusedAdamW(params, **OPTIONS),
        "torch fused": lambda params: torch.optim.AdamW(params, fused=True, capturable=True, **OPTIONS),
        "torch foreach": lambda params: torch.optim.AdamW(params, foreach=True, capturable=True, **OPTIONS),
    }
    everybody = {name: parameters(SMALL, SMALL_ELEMENTS, torch.float32) for name in makers}
    steps = {name: make(everybody[name]).step for name, make in makers.items()}
    for step in steps.values():
        for _ in range(3):
            step()
    found = {
        "gradients in place, host": {name: host_us(step) for name, step in steps.items()},
        "gradients reallocated, host": {name: host_us(step, moving(everybody[name])) for name, step in steps.items()},
        "in place, host and GPU": {name: ms * 1e3 for name, ms in medians_ms(steps, flush).items()},
    }
    graphs = {name: torch.cuda.CUDAGraph() for name in steps}
    for name, step in steps.items():
        with torch.cuda.graph(graphs[name]):
            step()
    replays = {name: graph.replay for name, graph in graphs.items()}
    found["graph replay"] = {name: ms * 1e3 for name, ms in medians_ms(replays, flush).items()}
    found["graph replay"]["torch fused, eager"] = found["gradients in place, host"]["torch fused"]
    for graph in graphs.values():
        graph.reset()
    targets = {
        "gradients in place, host": "< 90 us, 15 times better",
        "gradients reallocated, host": "< 250 us, 8 times better",
        "graph replay": "< 40 us, 40 times better than eager",
    }
    for what, times in found.items():
        for peer, us in times.items():
            if peer != "precast":
                text = f"AdamW, 1000 x 4096, {what}"
                yield Row(text, times["precast"], "us", peer, us, target=targets.get(what, ""))


def main() -> Report:
    """Measure large and small parameters, random data."""
    import torch

    title = "AdamW on the GPU"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("fused_adam", title, skipped="torch sees no NVIDIA GPU")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    rate = copy_rate(flush)
    rows = (*large(rate, flush), *small(flush))
    notes = (f"The copy rate is {rate * 1e-9:,.0f} GB/s: copy_ of 4.3 GB, read and written bytes together.",)
    return Report("fused_adam", title, rows, notes=notes)
