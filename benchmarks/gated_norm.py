"""Norms with a gate on the GPU, compared with torch as models have it; times in CUDA graphs, as in ``graphs``."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.convolution import COPY, medians_us
from benchmarks.graphs import sets_for
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

# Rows, columns, the size of a group, and whether the norm comes first: Qwen 3 Next and Mamba 2.
SHAPES = {"Qwen 3 Next": (262144, 128, None, True), "Mamba 2": (8192, 8192, 1024, False)}
FEW = 2048  # rows of a step of 64 sequences, for the heads of Qwen 3 Next


def plain(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, group: int | None, norm_first: bool
) -> torch.Tensor:
    """The modules of transformers."""
    import torch

    wide, silu = x.float(), torch.nn.functional.silu(gate.float())
    n = (wide if norm_first else wide * silu).unflatten(-1, (-1, group or x.shape[-1]))
    normal = weight * (n * torch.rsqrt(n.square().mean(-1, keepdim=True) + 1e-6)).flatten(-2).to(x.dtype)
    y: torch.Tensor = (normal * silu).to(x.dtype) if norm_first else normal
    return y


def rows(model: str, count: int, flush: torch.Tensor, l2: int) -> Iterator[Row]:
    """One shape of a model."""
    import torch

    import precast

    _, columns, group, first = SHAPES[model]
    made = functools.partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    moved = 6 * count * columns
    weight = made(columns)
    sets = [(made(count, columns), made(count, columns), weight) for _ in range(sets_for(moved, l2))]
    eager = functools.partial(plain, group=group, norm_first=first)
    runs: dict[str, Any] = {
        "precast": functools.partial(
            precast.ops.rms_norm_gated, casting="llama", norm_first=first, group_size=group, eps=1e-6
        ),
        "torch eager": eager,
        "torch.compile": torch.compile(eager, dynamic=False),
    }
    with torch.no_grad():
        for other in runs.values():
            torch.testing.assert_close(runs["precast"](*sets[0]), other(*sets[0]), rtol=2e-2, atol=5e-2)
        times = medians_us(runs, sets, flush)
        copies = [(torch.empty(moved // 2, dtype=torch.uint8, device="cuda"),) for _ in sets]
        times[COPY] = medians_us({COPY: lambda a: a.clone()}, copies, flush)[COPY]
    for peer in (name for name in times if name != "precast"):
        target = ">= 0.85" if peer == COPY else ">= 1.0"
        yield Row(f"{model}, {count} x {columns}", times["precast"], "us", peer, times[peer], target=target)


def main() -> Report:
    """Measure every model."""
    import torch

    title = "RMS norms with a gate on the GPU, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("gated_norm", title, skipped="torch sees no NVIDIA GPU")
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    flush = torch.empty(2 * l2, dtype=torch.uint8, device="cuda")
    found: list[Row] = []
    for model, (many, *_) in SHAPES.items():
        for count in (many, FEW):
            torch.compiler.reset()
            found += rows(model, count, flush, l2)
    return Report("gated_norm", title, tuple(found))
