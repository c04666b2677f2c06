"""RMSNorm, with and without an addition, and its gradients, as shares of the GPU's copy rate."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.asked import asked
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]

SHAPES = ((32768, 4096), (16384, 8192), (65536, 1024), (4096, 4096))
REPEATS, ROUNDS, WARM_UP = 60, 3, 5
FLUSH_BYTES = 512 << 20  # several times the L2 cache of any GPU
COPY_ELEMENTS = 1 << 31  # reads 4.3 GB of bf16 and writes as much
COPY = "copy_ of as many bytes"
# Bytes moved, as a multiple of x: x and y; both addends, their sum and y; x, y's gradient and x's gradient.
STREAMS = {"rms_norm": 2, "fused_add_rms_norm": 4, "rms_norm backward": 3}


def samples_ms(function: Callable[[], object], flush: torch.Tensor | None, repeats: int = REPEATS) -> list[float]:
    """Time with CUDA events. Each run is preceded by a cache flush, which also keeps the host ahead of the GPU.

    Without ``flush`` the cache holds what the previous run left there, and a short call may wait for the host.
    """
    import torch

    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for _ in range(WARM_UP):
        function()
    for begin, end in pairs:
        if flush is not None:
            flush.zero_()
        begin.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return [float(begin.elapsed_time(end)) for begin, end in pairs]


def in_turns_ms(runs: Mapping[str, Callable[[], object]], flush: torch.Tensor | None) -> dict[str, list[float]]:
    """The samples of all contestants, measured in turns.

    A GPU is sometimes a tenth slower for some milliseconds. Turns spread that over few samples of each.
    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            found[name] += samples_ms(run, flush, REPEATS // ROUNDS)
    return found


def medians_ms(runs: Mapping[str, Callable[[], object]], flush: torch.Tensor) -> dict[str, float]:
    """The medians of :func:`in_turns_ms`."""
    return {name: statistics.median(samples) for name, samples in in_turns_ms(runs, flush).items()}


def compiled_for_one_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    """The best case of torch.compile."""
    import torch

    compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    return compiled


def copy_of(moved_bytes: int) -> Callable[[], object]:
    """A ``copy_`` of random data that reads and writes ``moved_bytes`` in total."""
    import torch

    target = torch.empty(moved_bytes // 2, dtype=torch.int8, device="cuda")
    return functools.partial(target.copy_, torch.randint_like(target, 100))


def copy_rate(flush: torch.Tensor) -> float:
    """Bytes per second that one large ``copy_`` reads and writes."""
    import torch

    source = torch.randn(COPY_ELEMENTS, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * source.nbytes / (statistics.median(samples_ms(lambda: target.copy_(source), flush)) * 1e-3)


def contestants(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, compiled: Compile = compiled_for_one_shape
) -> dict[str, dict[str, Callable[[], object]]]:
    """Pair our ops with torch eager and torch.compile of the same arithmetic."""
    import torch

    from precast.ops.norm import fused_add_rms_norm, rms_norm

    width = (x.shape[1],)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, width, weight, 1e-6)

    def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return norm(total, weight), total

    grad = torch.randn_like(x)
    leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]

    def backward(norm: Callable[..., torch.Tensor]) -> Callable[[], object]:
        """The backward pass alone, of a retained graph."""
        y = norm(*leaves)
        return lambda: torch.autograd.grad(y, leaves, grad, retain_graph=True)

    compiled_norm, compiled_add = compiled(norm), compiled(add_norm)
    return {
        "rms_norm": {
            "precast": lambda: rms_norm(x, weight),
            "torch eager": lambda: norm(x, weight),
            "torch.compile": lambda: compiled_norm(x, weight),
        },
        "fused_add_rms_norm": {
            "precast": lambda: fused_add_rms_norm(x, residual, weight),
            "torch eager": lambda: add_norm(x, residual, weight),
            "torch.compile": lambda: compiled_add(x, residual, weight),
        },
        "rms_norm backward": {
            "precast": backward(rms_norm),
            "torch eager": backward(norm),
            "torch.compile": backward(compiled_norm),
        },
    }


def main() -> Report:
    """Measure every shape, bf16, random data."""
    import torch

    title = "Norms on the GPU: share of the copy rate, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("norm", title, skipped="torch sees no NVIDIA GPU")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    rate = copy_rate(flush)
    rows = []
    for rows_count, width in SHAPES:
        x, residual = (torch.randn(rows_count, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        weight = torch.randn(width, device="cuda", dtype=torch.bfloat16)
        for op, functions in contestants(x, residual, weight).items():
            moved = x.nbytes * STREAMS[op]
            target = asked(op, (rows_count, width)).share_text
            runs = {**functions, COPY: copy_of(moved)}
            shares = {name: moved / (ms * 1e-3) / rate for name, ms in medians_ms(runs, flush).items()}
            for peer, share in shares.items():
                if peer != "precast":
                    what = f"{op} {rows_count}x{width}"
                    rows.append(
                        Row(what, shares["precast"], "share", peer, share, higher_is_better=True, target=target)
                    )
    notes = (f"The copy rate is {rate * 1e-9:,.0f} GB/s: copy_ of 4.3 GB, read and written bytes together.",)
    return Report("norm", title, tuple(rows), notes=notes)
