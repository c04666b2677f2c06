"""Calls of every op on rows, for plain torch and the kernels alike: odd widths and layouts, every mode, no rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Case = tuple[str, tuple[Any, ...]]
EPS = 1e-5


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
        f"gate {width}": ("rms_norm_gated", (x, residual, weight, EPS, 1, True, False, 0)),
        f"gate back {width}": ("rms_norm_gated_backward", (residual, x, x, weight, EPS, 0, False, True, 0)),
        f"length {width}": ("l2_norm", (x, EPS)),
        f"length back {width}": ("l2_norm_backward", (residual, x, EPS)),
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


def cases(some: Callable[..., torch.Tensor]) -> dict[str, Case]:
    """Odd widths, rows apart, transposed and expanded inputs, masks, no rows and no columns."""
    found = {name: case for width in (1, 7, 769) for name, case in of_width(width, some).items()}
    apart, across = some(4, 50)[:, 1:34], some(33, 4).t()
    found["rows apart"] = ("rms_norm", (apart, some(33), EPS, 0))
    found["transposed"] = ("layer_norm", (across, None, some(33), EPS))
    found["x alone"] = ("layer_norm_backward", (apart, across, None, EPS, False, True))
    found["rows apart, gated"] = ("gated_activation", (some(4, 51)[:, 1:], 0))
    found["rows apart, pair"] = ("activation_backward", (apart, some(4, 33), some(4, 70)[:, 1:34], 0))
    found["rows apart, groups"] = ("rms_norm_gated", (apart, apart, None, EPS, 0, False, False, 11))
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
        mask = some(*shape) < 0
        mask[..., 0, :] = True
        for value, uniform in ((-math.inf, number == 0), (-3.0, number == 1)):
            found[f"masked {number} {value} {uniform}"] = ("scaled_masked_softmax", (scores, mask, 0.7, value, uniform))
    odd = scores.clone()
    odd[0, 0, 0, 3], odd[0, 1, 1, 4], odd[1, 2, 2, :] = math.nan, math.inf, -math.inf
    found["odd numbers"] = ("scaled_softmax", (odd, 0.7))
    found["nothing"] = ("rms_norm", (some(0, 33), some(33), EPS, 0))
    found["nothing back"] = ("layer_norm_backward", (some(0, 33), some(0, 33), some(33), EPS, True, True))
    found["no columns"] = ("scaled_softmax", (some(3, 0), 1.0))
    return found
