"""Causal convolutions on the GPU: shares of the copy rate, and times compared with torch and the package causal-conv1d.

Times are those of calls in CUDA graphs over rotating buffers, as in ``graphs``.
"""

from __future__ import annotations

import functools
import importlib
import statistics
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.graphs import STEADY, captured, in_turns, sets_for
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]

# Batch, tokens, channels, and whether channels are neighbours in memory.
SHAPES = ((8, 4096, 8192, True), (8, 4096, 8192, False), (1, 2048, 10240, True), (4, 2048, 8192, True))
STATES, CHANNELS, WIDTH = (1, 64, 512), 8192, 4
COPY = "a copy"


def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A torch user's code."""
    import torch

    y = torch.nn.functional.conv1d(x, weight[:, None], bias, padding=WIDTH - 1, groups=len(weight))
    return torch.nn.functional.silu(y[..., : x.shape[-1]])


def step(x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same for one token, as transformers does without kernels."""
    import torch

    window = torch.cat([state, x[..., None]], -1)
    state.copy_(window[..., 1:])
    return torch.nn.functional.silu((window * weight).sum(-1) + bias)


def contestants(form: str) -> dict[str, Callable[..., Any]]:
    """The forward or a step, by contestant; causal-conv1d if it is installed."""
    import torch

    import precast

    ops = precast.ops
    ours, theirs = (ops.causal_conv1d, plain) if form == "forward" else (ops.causal_conv1d_update_, step)
    found = {
        "precast": functools.partial(ours, activation="silu"),
        "torch eager": theirs,
        "torch.compile": torch.compile(theirs, dynamic=False),
    }
    try:
        peer = importlib.import_module("causal_conv1d")
    except ImportError:
        return found
    name = "causal_conv1d_fn" if form == "forward" else "causal_conv1d_update"
    return found | {"causal-conv1d": functools.partial(getattr(peer, name), activation="silu")}


def forward_sets(shape: tuple[int, int, int, bool], count: int) -> list[tuple[torch.Tensor, ...]]:
    """Sets of buffers."""
    batch, tokens, channels, last = shape
    made = _made()
    weight, bias = made(channels, WIDTH), made(channels)
    xs = [
        made(batch, tokens, channels).transpose(1, 2) if last else made(batch, channels, tokens) for _ in range(count)
    ]
    return [(x, weight, bias) for x in xs]


def step_sets(states: int, count: int) -> list[tuple[torch.Tensor, ...]]:
    """Sets of buffers, with states of channels last."""
    made = _made()
    weight, bias = made(CHANNELS, WIDTH), made(CHANNELS)
    return [
        (made(states, CHANNELS), made(states, WIDTH - 1, CHANNELS).transpose(1, 2), weight, bias) for _ in range(count)
    ]


def _made() -> Callable[..., torch.Tensor]:
    import torch

    return functools.partial(torch.randn, device="cuda", dtype=torch.bfloat16)


def medians_us(runs: dict[str, Callable[..., Any]], sets: list[Any], flush: torch.Tensor) -> dict[str, float]:
    """The median time of a call of each contestant, over all sets of buffers."""
    found = {name: captured([functools.partial(run, *one) for one in sets]) for name, run in runs.items()}
    return {name: statistics.median(samples) for name, samples in in_turns(found, flush)[STEADY].items()}


def rows(form: str, what: str, moved: int, sets: list[Any], flush: torch.Tensor) -> Iterator[Row]:
    """Compares the contestants' results, then their times with each other and with a copy of as many bytes."""
    import torch

    runs = contestants(form)
    with torch.no_grad():
        results = {name: run(*(one.clone() for one in sets[0])) for name, run in runs.items()}
        for other in results.values():
            torch.testing.assert_close(results["precast"], other, rtol=2e-2, atol=5e-2)
        buffers = [torch.empty(moved // 2, dtype=torch.uint8, device="cuda") for _ in range(2 * len(sets))]
        copies = [(buffers[i], buffers[-1 - i]) for i in range(len(sets))]
        times = medians_us(runs, sets, flush)
        times[COPY] = medians_us({COPY: lambda a, b: a.copy_(b)}, copies, flush)[COPY]
    for peer in (name for name in times if name != "precast"):
        target = (">= 0.85" if form == "forward" else ">= 0.8") if peer == COPY else ">= 1.0"
        yield Row(f"{form}, {what}", times["precast"], "us", peer, times[peer], target=target)


def main() -> Report:
    """Measure every shape."""
    import torch

    title = "Causal convolutions of 4 taps with silu on the GPU, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("convolution", title, skipped="torch sees no NVIDIA GPU")
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    flush = torch.empty(2 * l2, dtype=torch.uint8, device="cuda")
    found: list[Row] = []
    for shape in SHAPES:
        torch.compiler.reset()
        batch, tokens, channels, last = shape
        moved = 4 * batch * tokens * channels
        what = f"{batch} x {tokens} x {channels}, {'channels' if last else 'tokens'} last"
        found += rows("forward", what, moved, forward_sets(shape, sets_for(moved, l2)), flush)
    for states in STATES:
        torch.compiler.reset()
        moved = 4 * states * CHANNELS * WIDTH
        found += rows(
            "update", f"{states} states of {CHANNELS} channels", moved, step_sets(states, sets_for(moved, l2)), flush
        )
    return Report("convolution", title, tuple(found))
