"""Forward and backward of the softmax ops, as shares of the GPU's copy rate, compared with torch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.asked import asked
from benchmarks.norm import FLUSH_BYTES, Compile, compiled_for_one_shape, copy_rate, medians_ms
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

SHAPES = ((8, 32, 2048, 2048), (8, 32, 1024, 1024), (2, 32, 4096, 4096))
SCALE = 0.125

Function = Callable[["torch.Tensor"], "torch.Tensor"]


def contestants(
    mask: torch.Tensor, behind: torch.Tensor, compiled: Compile = compiled_for_one_shape
) -> dict[str, dict[str, Function]]:
    """Pair our ops with torch eager and torch.compile of the same arithmetic."""
    import torch

    import precast

    def masked(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x * SCALE).masked_fill(mask, -torch.inf), -1)

    def causal(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x * SCALE).masked_fill(behind, -torch.inf), -1)

    return {
        "masked": {
            "precast": lambda x: precast.ops.scaled_masked_softmax(x, mask, SCALE),
            "torch eager": masked,
            "torch.compile": compiled(masked),
        },
        "causal": {
            "precast": lambda x: precast.ops.scaled_upper_triang_masked_softmax(x, SCALE),
            "torch eager": causal,
            "torch.compile": compiled(causal),
        },
    }


def backward_of(function: Function, x: torch.Tensor, grad: torch.Tensor) -> Callable[[], object]:
    """The backward pass alone, of a retained graph."""
    import torch

    leaf = x.detach().requires_grad_()
    y = function(leaf)
    return lambda: torch.autograd.grad(y, leaf, grad, retain_graph=True)


def measure(shape: tuple[int, int, int, int], flush: torch.Tensor, rate: float) -> list[Row]:
    """Both ops at one shape. The bytes of causal softmax: half is read, all is written."""
    import torch

    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    grad = torch.randn_like(x)
    mask = torch.rand(shape[0], 1, *shape[2:], device="cuda") < 0.3
    mask[..., 0] = False
    behind = torch.ones(shape[2:], dtype=torch.bool, device="cuda").triu(1)
    rows = []
    for op, functions in contestants(mask, behind).items():
        part = 0.5 if op == "causal" else 1.0
        for way, moved in (("forward", x.nbytes * (1 + part)), ("backward", x.nbytes * (1 + 2 * part))):
            runs: dict[str, Callable[[], object]] = {
                name: backward_of(function, x, grad) if way == "backward" else functools.partial(function, x)
                for name, function in functions.items()
            }
            shares = {name: moved / (ms * 1e-3) / rate for name, ms in medians_ms(runs, flush).items()}
            target = asked(f"{op} softmax {way}", shape).share_text
            what = f"{op} softmax, {way}, {'x'.join(map(str, shape))}"
            for peer in ("torch eager", "torch.compile"):
                ours, theirs = shares["precast"], shares[peer]
                rows.append(Row(what, ours, "share", peer, theirs, higher_is_better=True, target=target))
    return rows


def main() -> Report:
    """Measure every shape, bf16, random data."""
    import torch

    title = "Softmax on the GPU: share of the copy rate, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("softmax", title, skipped="torch sees no NVIDIA GPU")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    rate = copy_rate(flush)
    rows = [row for shape in SHAPES for row in measure(shape, flush, rate)]
    notes = (f"The copy rate is {rate * 1e-9:,.0f} GB/s: copy_ of 4.3 GB, read and written bytes together.",)
    return Report("softmax", title, tuple(rows), notes=notes)
