"""Rotary embedding as a share of the GPU's copy rate, and compared with a launch if there is little to do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.asked import asked
from benchmarks.norm import COPY, FLUSH_BYTES, Compile, compiled_for_one_shape, copy_of, copy_rate, medians_ms
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

Run = Callable[[], Any]
Shape = tuple[int, int, int, int]

# Tokens, heads of query and of key, head_dim: one GPU's share of a prompt, and one step of this many sequences.
PREFILL: tuple[Shape, ...] = ((16384, 32, 8, 128), (8192, 32, 8, 128), (4096, 32, 8, 128), (8192, 16, 16, 72))
DECODE: tuple[Shape, ...] = ((64, 32, 8, 128), (16, 32, 8, 128), (1, 32, 8, 128))


def by_torch(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The usual code in models: tables of full width in the heads' dtype, and two halves concatenated."""
    import torch

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    return turned(query), turned(key)


def moved_bytes(query: torch.Tensor, key: torch.Tensor, table: torch.Tensor) -> int:
    """The bytes: query and key are read and written, and two tables are read."""
    return 2 * (query.nbytes + key.nbytes) + 2 * table.nbytes


def backward_of(function: Callable[..., Any], query: torch.Tensor, key: torch.Tensor) -> Run:
    """The backward pass alone, repeatedly over one recorded forward."""
    import torch

    leaves = [t.detach().requires_grad_() for t in (query, key)]
    both = function(*leaves)
    torch.manual_seed(0)  # the same random gradients for all contestants
    grads = [torch.randn_like(y) for y in both]
    return lambda: torch.autograd.grad(both, leaves, grads, retain_graph=True)


def cases(
    shape: Shape, compiled: Compile, random: Callable[..., torch.Tensor]
) -> Iterator[tuple[str, int, dict[str, Run]]]:
    """Forward and backward at a shape: name, bytes, and every contestant's run."""
    import torch

    import precast

    tokens, heads, key_heads, width = shape
    query, key = (random(tokens, count, width) for count in (heads, key_heads))
    angle = random(tokens, width // 2).float()
    cos, sin = angle.cos(), angle.sin()
    full = [torch.cat([table, table], -1).to(query.dtype).unsqueeze(1) for table in (cos, sin)]
    compiled_rotary = compiled(by_torch)
    functions: dict[str, Callable[..., Any]] = {
        "precast": lambda q, k: precast.ops.rotary_embedding(q, k, cos, sin),
        "torch eager": lambda q, k: by_torch(q, k, *full),
        "torch.compile": lambda q, k: compiled_rotary(q, k, *full),
    }
    moved = moved_bytes(query, key, cos)
    forward: dict[str, Run] = {name: functools.partial(function, query, key) for name, function in functions.items()}
    yield "rotary_embedding", moved, forward
    backward = {name: backward_of(function, query, key) for name, function in functions.items()}
    yield "rotary_embedding backward", moved, backward


def random_on_gpu(*shape: int) -> torch.Tensor:
    """Normally distributed numbers in bf16."""
    import torch

    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def main() -> Report:
    """Measure every shape: prompts as shares of the copy rate, single steps in microseconds."""
    import torch
    from torch._functorch import config

    title = "Rotary embedding on the GPU: share of the copy rate, or time; bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("rotary", title, skipped="torch sees no NVIDIA GPU")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    rate = copy_rate(flush)
    rows = []
    for shape in (*PREFILL, *DECODE):
        torch.compiler.reset()
        with config.patch(donated_buffer=False):  # otherwise a compiled backward runs only once
            for op, moved, runs in cases(shape, compiled_for_one_shape, random_on_gpu):
                rows += rows_of(op, shape, medians_ms({**runs, COPY: copy_of(moved)}, flush), moved / rate * 1e3)
    notes = (
        f"The copy rate is {rate * 1e-9:,.0f} GB/s: copy_ of 4.3 GB, read and written bytes together.",
        "Shapes are tokens, heads of query, heads of key, head_dim. Tables: float32 for precast, bf16 for torch.",
    )
    return Report("rotary", title, tuple(rows), notes=notes)


def rows_of(op: str, shape: Shape, times: dict[str, float], least_ms: float) -> list[Row]:
    """Ours compared with each peer: the share of the minimum time if bytes decide, else the time itself."""
    what = f"{op} {'x'.join(map(str, shape))}"
    ours, *peers = times
    if shape in DECODE:
        return [Row(what, times[ours] * 1e3, "us", peer, times[peer] * 1e3) for peer in peers]
    shares = {name: least_ms / ms for name, ms in times.items()}
    target = asked(op, shape).share_text
    return [
        Row(what, shares[ours], "share", peer, shares[peer], higher_is_better=True, target=target) for peer in peers
    ]
