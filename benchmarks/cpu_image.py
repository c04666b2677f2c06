"""The image ops on the CPU compared with torch eager: padding and a grouped ``conv2d``; bias and activation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.processes import OURS, Found, compare, medians, rows
from benchmarks.report import Report

MODULE = "benchmarks.cpu_image"
EAGER = "torch eager"
SHAPES = ((4, 64, 64, 64), (1, 512, 16, 16), (2, 32, 257, 255), (8, 3, 256, 256))
DTYPES = ("float32", "bfloat16")
# Name -> up, down, the taps, and whether the filter has one dimension.
FILTERS = {
    "4x4": (1, 1, (1, 3, 3, 1), False),
    "4x4 up 2": (2, 1, (1, 3, 3, 1), False),
    "4x4 down 2": (1, 2, (1, 3, 3, 1), False),
    "12x12": (1, 1, (1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1), False),
    "12 + 12 up 2": (2, 1, (1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1), True),
    "12 + 12 down 2": (1, 2, (1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1), True),
}
ACTS = ("linear", "lrelu", "swish", "tanh", "softplus", "elu")
TARGETS = {"upfirdn2d": ">= 1.5", "bias_act": ">= 1.0"}

Contestants = dict[str, Callable[[], object]]


def _filtered(x: Any, f: Any, up: int, down: int, pads: tuple[int, ...]) -> Any:
    """Zeros between the pixels, padding, and one convolution of each channel; two for a filter of one dimension."""
    from torch.nn import functional

    channels = x.shape[1]
    if up > 1:
        spread = functional.pad(x[:, :, :, None, :, None], (0, up - 1, 0, 0, 0, up - 1))
        x = spread.reshape(*x.shape[:2], x.shape[2] * up, x.shape[3] * up)
    x = functional.pad(x, pads)
    if f.dim() == 2:
        return functional.conv2d(x, f.expand(channels, 1, *f.shape), stride=down, groups=channels)
    x = functional.conv2d(x, f[None, :].expand(channels, 1, 1, -1), stride=(1, down), groups=channels)
    return functional.conv2d(x, f[:, None].expand(channels, 1, -1, 1), stride=(down, 1), groups=channels)


def filters(x: Any) -> Iterator[tuple[str, Contestants]]:
    """Each filter on one image."""
    from precast import ops

    for name, (up, down, taps, separable) in FILTERS.items():
        f = ops.setup_filter(taps, separable=separable, flip_filter=True)  # symmetric: torch correlates
        before, behind = (len(taps) + up - down) // 2, (len(taps) - up) // 2 if down == 1 else (len(taps) - down) // 2
        pads = (before, behind, before, behind)
        yield (
            f"upfirdn2d {name}",
            {
                OURS: functools.partial(ops.upfirdn2d, x, f, up, down, pads),
                EAGER: functools.partial(_filtered, x, f.to(x.dtype), up, down, pads),
            },
        )


def _activated(x: Any, b: Any, act: str) -> Any:
    from torch.nn import functional

    u = x + b[:, None, None]
    if act == "linear":
        return u
    if act == "lrelu":
        return functional.leaky_relu(u, 0.2) * 2**0.5
    if act == "swish":
        return functional.silu(u) * 2**0.5
    return getattr(functional, act)(u)


def activations(x: Any) -> Iterator[tuple[str, Contestants]]:
    """Each activation of one image."""
    import torch

    from precast import ops

    b = torch.randn(x.shape[1]).to(x.dtype)
    for act in ACTS:
        yield (
            f"bias_act {act}",
            {
                OURS: functools.partial(ops.bias_act, x, b, 1, act),
                EAGER: functools.partial(_activated, x, b, act),
            },
        )


def measure() -> Found:
    """Every shape in every dtype and memory format."""
    import torch

    torch.manual_seed(0)
    found: Found = {}
    with torch.no_grad():
        for shape in SHAPES:
            for dtype in DTYPES:
                for memory_format in (torch.contiguous_format, torch.channels_last):
                    x = torch.randn(shape).to(getattr(torch, dtype)).contiguous(memory_format=memory_format)
                    last = " channels_last" if memory_format == torch.channels_last else ""
                    for op, contestants in (*filters(x), *activations(x)):
                        what = f"{op} {'x'.join(map(str, shape))} {dtype}{last}"
                        found[what] = compare(contestants, rounds=7)
    return found


def main() -> Report:
    """The medians of three processes."""
    found = medians(MODULE)
    targets = {(what, EAGER): TARGETS[what.partition(" ")[0]] for what in found}
    return Report("cpu_image", "Image ops on the CPU, medians of three processes", tuple(rows(found, "us", targets)))
