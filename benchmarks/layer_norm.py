"""layer_norm and its gradients, as shares of the GPU's copy rate, compared with torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.asked import asked
from benchmarks.norm import FLUSH_BYTES, SHAPES, Compile, compiled_for_one_shape, copy_rate, medians_ms
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

    Norm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Forward reads x and writes y. Backward reads x and the gradient, and writes x's gradient.
STREAMS = {"layer_norm": 2, "layer_norm backward": 3}


def contestants(width: int, compiled: Compile = compiled_for_one_shape) -> dict[str, Norm]:
    """Our op, torch eager, and torch.compile of the same arithmetic, by name."""
    import torch

    from precast.ops.norm import layer_norm

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (width,), weight, bias)

    return {
        "precast": layer_norm,
        "torch eager": norm,
        "torch.compile": compiled(norm),
    }


def runs(function: Norm, leaves: list[torch.Tensor], grad: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The forward alone, and the backward alone of a retained graph."""
    import torch

    plain = [leaf.detach() for leaf in leaves]
    y = function(*leaves)
    return {
        "layer_norm": lambda: function(*plain),
        "layer_norm backward": lambda: torch.autograd.grad(y, leaves, grad, retain_graph=True),
    }


def main() -> Report:
    """Measure every shape, bf16, random data, forward and backward."""
    import torch

    title = "LayerNorm on the GPU: share of the copy rate, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("layer_norm", title, skipped="torch sees no NVIDIA GPU")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    rate = copy_rate(flush)
    rows = []
    for rows_count, width in SHAPES:
        x, grad = (torch.randn(rows_count, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        columns = [torch.randn(width, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        leaves = [t.requires_grad_() for t in (x, *columns)]
        everybody = {name: runs(function, leaves, grad) for name, function in contestants(width).items()}
        for op, streams in STREAMS.items():
            times = medians_ms({name: both[op] for name, both in everybody.items()}, flush)
            found = {name: streams * grad.nbytes / (ms * 1e-3) / rate for name, ms in times.items()}
            target = asked(op, (rows_count, width)).share_text
            what = f"{op} {rows_count}x{width}"
            rows += [
                Row(what, found["precast"], "share", peer, share, higher_is_better=True, target=target)
                for peer, share in found.items()
                if peer != "precast"
            ]
    notes = (f"The copy rate is {rate * 1e-9:,.0f} GB/s: copy_ of 4.3 GB, read and written bytes together.",)
    return Report("layer_norm", title, tuple(rows), notes=notes)
