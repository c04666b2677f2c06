"""A program for a child process: runs every twin, on a GPU or in Triton's interpreter, and keeps what it gave.

``run_twins.py cpu FILE`` with ``TRITON_INTERPRET=1``, which Triton reads when it is imported, or ``run_twins.py cuda
FILE``. The file has, by case, the op, its arguments and its results.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch

import precast.ops  # noqa: F401 - which defines the ops
from precast._dispatch import namespace

Case = tuple[str, tuple[Any, ...]]
EPS = 1e-5
LONG = 16384 + 77  # longer than a program keeps


def of_width(width: int, some: Callable[..., torch.Tensor]) -> dict[str, Case]:
    """Every op on rows of one width."""
    x, residual, weight, bias = some(2, 3, width), some(2, 3, width), some(width), some(width)
    shares = torch.softmax(some(2, 3, width), -1)
    pairs = [(kind, residual[1] if kind < 6 else None) for kind in (0, 1, 3, 4, 5, 6, 7)]
    return {
        f"rms {width}": ("rms_norm", (x, weight, EPS, 0)),
        f"rms llama {width}": ("rms_norm", (x, weight, EPS, 1)),
        f"rms gemma {width}": ("rms_norm", (x, weight, EPS, 2)),
        f"rms back {width}": ("rms_norm_backward", (residual, x, weight, EPS, 0)),
        f"add {width}": ("fused_add_rms_norm", (x, residual, weight, EPS, 0)),
        f"add back {width}": ("fused_add_rms_norm_backward", (bias.expand_as(x), residual, x, weight, EPS, 2)),
        f"layer {width}": ("layer_norm", (x + 9, weight, bias, EPS)),
        f"layer back {width}": ("layer_norm_backward", (residual, x, weight, EPS, True, True)),
        f"softmax {width}": ("scaled_softmax", (x, 0.7)),
        f"causal {width}": ("scaled_aligned_causal_softmax", (some(2, 5, width), 0.7)),
        f"softmax back {width}": ("scaled_softmax_backward", (residual, shares, 0.7, False)),
        **{
            f"gated {width} {kind}": ("gated_activation", (some(3, 2 * width) * 3, kind, 1.5, 2.0)) for kind in range(6)
        },
        **{
            f"gated back {width} {kind}": (
                "gated_activation_backward",
                (some(3, width), some(3, 2 * width), kind, 0.5, 1.0),
            )
            for kind in range(6)
        },
        **{f"pair {width} {kind}": ("activation", (x[0], up, kind, 1.5, 2.0)) for kind, up in pairs},
        **{
            f"pair back {width} {kind}": ("activation_backward", (some(3, width), x[0], up, kind, 0.5, 1.0))
            for kind, up in pairs
        },
    }


def cases(dtype: Any, widths: tuple[int, ...]) -> dict[str, Case]:
    """Odd widths, rows apart, transposed and expanded inputs, rows that are read again, every mode."""
    random = torch.Generator().manual_seed(7)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    found: dict[str, Case] = {}
    for width in widths:
        found.update(of_width(width, some))
    apart, across = some(4, 50)[:, 1:34], some(33, 4).t()
    found["rows apart"] = ("rms_norm", (apart, some(33), EPS, 0))
    found["transposed"] = ("layer_norm", (across, None, some(33), EPS))
    found["x alone"] = ("layer_norm_backward", (apart, across, None, EPS, False, True))
    found["rows apart, gated"] = ("gated_activation", (some(4, 51)[:, 1:], 0))
    found["rows apart, alternating"] = ("gated_activation", (some(4, 52)[:, 2:], 5, 1.702, 7.0))
    found["rows apart, pair"] = ("activation_backward", (apart, some(4, 33), some(4, 70)[:, 1:34], 0))
    if dtype != torch.float32:
        wide = some(33).float() * 1.01
        found["float32 weight"] = ("rms_norm", (apart, wide, EPS, 1))
        found["float32 weight back"] = ("rms_norm_backward", (apart, apart, wide, EPS, 0))
        found["float32 parameters"] = ("layer_norm", (across, wide, wide, EPS))
        found["float32 parameters back"] = ("layer_norm_backward", (apart, across, wide, EPS, True, True))
    found["in place"] = ("fused_add_rms_norm_", (some(4, 33), some(4, 33), some(33), EPS, 0))
    found["square"] = ("scaled_upper_triang_masked_softmax", (some(2, 2, 9, 9), 0.3))
    found["causal back"] = ("scaled_softmax_backward", (some(3, 9, 9), torch.softmax(some(3, 9, 9), -1), 0.3, True))
    scores = some(2, 3, 5, 17)
    for number, shape in enumerate(((2, 1, 5, 17), (1, 1, 1, 17), (2, 3, 5, 17), (5, 17))):
        mask = torch.rand(*shape, generator=random) < 0.5
        mask[..., 0, :] = True
        for value, uniform in ((-math.inf, number == 0), (-3.0, number == 1)):
            found[f"masked {number} {value} {uniform}"] = ("scaled_masked_softmax", (scores, mask, 0.7, value, uniform))
    odd = scores.clone()
    odd[0, 0, 0, 3], odd[0, 1, 1, 4], odd[1, 2, 2, :] = math.nan, math.inf, -math.inf
    found["odd numbers"] = ("scaled_softmax", (odd, 0.7))
    found["odd numbers, masked"] = ("scaled_masked_softmax", (odd, odd.isnan().byte() * 2, 0.7, -math.inf, False))
    long, other = some(2, LONG), some(2, LONG)
    found["long rms"] = ("fused_add_rms_norm", (long, other, some(LONG), EPS, 0))
    found["long rms back"] = ("rms_norm_backward", (long, other, some(LONG), EPS, 0))
    found["long layer"] = ("layer_norm", (long, None, None, EPS))
    found["long layer back"] = ("layer_norm_backward", (long, other, None, EPS, True, True))
    found["long softmax"] = ("scaled_softmax", (long, 2.0))
    found["long causal"] = ("scaled_aligned_causal_softmax", (long, 2.0))
    found["long masked"] = ("scaled_masked_softmax", (long, other > 0, 2.0, -1e4, False))
    found["long softmax back"] = ("scaled_softmax_backward", (long, torch.softmax(other, -1), 0.5, True))
    found["long gated"] = ("gated_activation", (some(1, 2 * 2049), 1))
    found["nothing"] = ("rms_norm", (some(0, 33), some(33), EPS, 0))
    found["nothing back"] = ("layer_norm_backward", (some(0, 33), some(0, 33), some(33), EPS, True, True))
    found["no columns"] = ("scaled_softmax", (some(3, 0), 1.0))
    return found


def main(device: str, path: str) -> None:
    """Runs the cases: all widths in one dtype, one width in the others."""
    kept = {}
    dtypes = ((torch.float32, (1, 7, 769)), (torch.float16, (7,)), (torch.bfloat16, (769,)))
    for dtype, widths in dtypes[:2] if device == "cpu" else dtypes:  # the interpreter cuts bfloat16 instead of rounding
        given = cases(dtype, widths if device == "cpu" else widths[-1:])
        for name, (op, args) in given.items():
            moved = [arg.to(device, copy=True) if isinstance(arg, torch.Tensor) else arg for arg in args]
            result = namespace.twin(op)(*moved)
            results = moved[:2] if result is None else result if isinstance(result, tuple) else (result,)
            kept[f"{name} {str(dtype).removeprefix('torch.')}"] = (op, args, [r.cpu() for r in results])
    torch.save(kept, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
