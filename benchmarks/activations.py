"""Forward and backward of the gated activations, as shares of the GPU's copy rate, compared with torch's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.asked import asked
from benchmarks.norm import FLUSH_BYTES, copy_rate, medians_ms
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

SHAPES = ((32768, 4096), (16384, 8192), (65536, 1024), (4096, 4096), (4096, 6145))  # of the result
ALONE_SHAPES = ((8191, 2881), (8192, 11008))  # of activations without a factor


def formulas() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The code that a torch user writes for each of our ops."""
    from torch.nn.functional import gelu, silu

    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return silu(first) * second

    def gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return gelu(first) * second

    def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return gelu(first, approximate="tanh") * second

    return {function.__name__: function for function in (silu_and_mul, gelu_and_mul, gelu_tanh_and_mul)}


def alone() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The same for activations without a factor."""
    import torch

    def gelu_new(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x, approximate="tanh")

    def gelu_quick(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)

    return {function.__name__: function for function in (gelu_new, gelu_quick)}


def backward_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Callable[[], object]:
    """The backward pass alone, repeatedly over one recorded forward."""
    import torch

    leaf = x.detach().requires_grad_()
    y = function(leaf)
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, leaf, grad, retain_graph=True)


def rows_of(op: str, x: torch.Tensor, rate: float, flush: torch.Tensor) -> list[Row]:
    """Forward and backward of one op at one shape, compared with torch eager and torch.compile."""
    import torch

    import precast

    ours, theirs = getattr(precast.ops, op), formulas()[op]
    # A fresh compilation for a fixed shape is the best case of torch.compile.
    torch.compiler.reset()
    functions = {"precast": ours, "torch eager": theirs, "torch.compile": torch.compile(theirs, dynamic=False)}
    torch.testing.assert_close(ours(x), theirs(x))
    rows = []
    for way, moved in (("", x.nbytes * 3 // 2), (" backward", x.nbytes * 5 // 2)):
        runs: dict[str, Callable[[], object]] = {
            name: backward_of(function, x) if way else functools.partial(function, x)
            for name, function in functions.items()
        }
        shares = {name: moved / (ms * 1e-3) / rate for name, ms in medians_ms(runs, flush).items()}
        target = asked(op + way, (x.shape[0], x.shape[1] // 2)).share_text
        what = f"{op}{way} {x.shape[0]}x{x.shape[1] // 2}"
        for peer in ("torch eager", "torch.compile"):
            rows.append(Row(what, shares["precast"], "share", peer, shares[peer], higher_is_better=True, target=target))
    return rows


def main() -> Report:
    """Measure every shape, bf16, random data."""
    import torch
    from torch._functorch import config

    title = "Gated activations on the GPU: share of the copy rate, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("activations", title, skipped="torch sees no NVIDIA GPU")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    rate = copy_rate(flush)
    rows = []
    for height, width in SHAPES:
        x = torch.randn(height, 2 * width, device="cuda", dtype=torch.bfloat16)
        for op in formulas():
            with config.patch(donated_buffer=False):  # otherwise a compiled backward runs only once
                rows += rows_of(op, x, rate, flush)
    notes = (
        f"The copy rate is {rate * 1e-9:,.0f} GB/s: copy_ of 4.3 GB, read and written bytes together.",
        "The forward reads two halves and writes one; the backward reads three and writes two.",
    )
    return Report("activations", title, tuple(rows), notes=notes)
