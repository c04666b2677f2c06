"""Compares an adopted model with the untouched one, and their differences with the model's own noise."""

from __future__ import annotations

import math
import statistics

import torch
from torch import Tensor

from precast._adopt.measured import Measured
from precast._adopt.report import Comparison

_RESOLUTION = 2.0**-20  # some roundings of float32, as in the probe
_TINY = 1e-300


def compare(untouched: Measured, adopted: Measured, noises: list[Measured]) -> tuple[Comparison, ...]:
    """One comparison per output, and one for the gradient that differs most in terms of its noise.

    An output or gradient of which no element is finite says nothing, and is left out.
    """
    compared = [
        _compared(name, value, adopted.outputs.get(name), [noise.outputs.get(name) for noise in noises])
        for name, value in untouched.outputs.items()
        if value.isfinite().any()
    ]
    gradients = [
        (value, _compared(name, value, adopted.gradients.get(name), [n.gradients.get(name) for n in noises]))
        for name, value in untouched.gradients.items()
        if value.isfinite().any()
    ]
    # The few elements of a small parameter may show little noise by chance. A gradient of zero has no size.
    usual = statistics.median_low([one.noise / _size(value) for value, one in gradients if value.any()] or [0.0])
    fair = [
        Comparison(f"gradient of {one.output}", one.difference, max(one.noise, usual * _size(value)), 4)
        for value, one in gradients
    ]
    worst = max(fair, key=lambda one: (not one.holds, one.difference / max(one.noise, _TINY)), default=None)
    return (*compared, *(() if worst is None else (worst,)))


def endless(found: Measured) -> tuple[str, ...]:
    """The outputs and gradients that :func:`compare` leaves out."""
    gradients = {f"gradient of {name}": value for name, value in found.gradients.items()}
    every = {**found.outputs, **gradients}
    return tuple(name for name, value in every.items() if not value.isfinite().any())


def _compared(name: str, value: Tensor, other: Tensor | None, noises: list[Tensor | None]) -> Comparison:
    own = [_difference(value, noise) for noise in noises if noise is not None]
    return Comparison(name, _difference(value, other), max([_resolution(value), *filter(math.isfinite, own)]))


def _resolution(value: Tensor) -> float:
    """Some roundings of the largest element. Below the normal numbers of float32 there is no precision to compare."""
    kind = torch.finfo(value.dtype)
    smallest = max(kind.tiny * kind.eps, torch.finfo(torch.float32).tiny)
    return max(max(kind.eps, _RESOLUTION) * _size(value), smallest)


def _difference(value: Tensor, other: Tensor | None) -> float:
    """The largest difference of two elements; NaN if a result is missing, has another shape, or one is not finite."""
    if other is None or other.shape != value.shape:
        return math.nan
    one, two = value.double(), other.double()
    same = (one == two) | (one.isnan() & two.isnan())  # inf - inf would be NaN
    difference = (one - two).abs().where(~same, 0.0)
    return float(difference.max()) if difference.numel() else 0.0


def _size(value: Tensor) -> float:
    finite = value.detach()[value.isfinite()]
    return max(float(finite.abs().max()) if finite.numel() else 0.0, _TINY)
