"""Softmax and RMS norm on the CPU compared with torch eager, at every shape. The table shows where torch is faster."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.processes import OURS, Found, compare, medians, rows
from benchmarks.report import Report

MODULE = "benchmarks.cpu_rows"
EAGER = "torch eager"
DTYPES = ("float32", "bfloat16")
SOFTMAX_SHAPES = ((1, 8, 64, 64), (1, 16, 256, 256), (1, 32, 512, 512), (2, 8, 1024, 1024), (1, 4, 2048, 2048))
NORM_SHAPES = ((1, 4096), (16, 768), (128, 4096), (1024, 1024), (2048, 8192))
SCALE, EPS = 0.125, 1e-6


def softmax(shape: tuple[int, ...], dtype: str) -> dict[str, dict[str, Callable[[], object]]]:
    """Masked and causal softmax of one shape."""
    import torch

    import precast

    x = torch.randn(shape).to(getattr(torch, dtype))
    mask = torch.rand(shape[0], 1, *shape[2:]) < 0.3
    mask[..., 0] = False
    behind = torch.ones(shape[2:], dtype=torch.bool).triu(1)
    return {
        "masked softmax": {
            OURS: lambda: precast.ops.scaled_masked_softmax(x, mask, SCALE),
            EAGER: lambda: torch.softmax((x * SCALE).masked_fill(mask, -10000.0), -1),
        },
        "causal softmax": {
            OURS: lambda: precast.ops.scaled_upper_triang_masked_softmax(x, SCALE),
            EAGER: lambda: torch.softmax((x * SCALE).masked_fill(behind, -torch.inf), -1),
        },
    }


def norm(shape: tuple[int, int], dtype: str) -> dict[str, dict[str, Callable[[], object]]]:
    """The RMS norm of one shape, compared with torch's own function."""
    import torch

    from precast.ops.norm import rms_norm

    x, weight = (torch.randn(size).to(getattr(torch, dtype)) for size in (shape, shape[-1:]))
    return {
        "rms_norm": {
            OURS: lambda: rms_norm(x, weight, EPS),
            EAGER: lambda: torch.nn.functional.rms_norm(x, shape[-1:], weight, EPS),
        }
    }


def measure() -> Found:
    """Every shape in every dtype."""
    import torch

    torch.manual_seed(0)
    found: Found = {}
    with torch.no_grad():
        for dtype in DTYPES:
            cases = [(shape, softmax(shape, dtype)) for shape in SOFTMAX_SHAPES]
            cases += [(shape, norm(shape, dtype)) for shape in NORM_SHAPES]  # type: ignore[misc]
            for shape, ops in cases:
                for op, contestants in ops.items():
                    what = f"{op} {'x'.join(map(str, shape))} {dtype}"
                    small = torch.Size(shape).numel() < 1 << 18
                    found[what] = compare(contestants, rounds=31 if small else 9, calls=20 if small else 1)
    return found


def main() -> Report:
    """The medians of three processes."""
    found = medians(MODULE)
    targets = {(what, EAGER): ">= 1.0" for what in found}
    listed = rows(found, "us", targets)
    lost = [row.what for row in listed if (row.ratio or 0) < 1]
    notes = (f"Slower than torch: {', '.join(lost)}." if lost else "Slower than torch: none.",)
    return Report("cpu_rows", "Softmax and RMS norm on the CPU, medians of three processes", tuple(listed), notes=notes)
