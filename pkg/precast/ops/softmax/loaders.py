"""The members for the loader of softmax: the public functions, and the same in plain torch."""

from __future__ import annotations

from torch import Tensor

from precast.ops._folders import Members
from precast.ops.softmax import (
    reference,
    scaled_aligned_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_upper_triang_masked_softmax,
)


def _masked(
    x: Tensor, mask: Tensor, scale: float, *, masked_value: float | str = "-inf", fully_masked: str = "zero"
) -> Tensor:
    """``precast.ops.scaled_masked_softmax`` in plain torch."""
    uniform = {"zero": False, "uniform": True}[fully_masked]
    return reference.scaled_masked_softmax(x, mask, scale, float(masked_value), uniform)


KERNELS: Members = {
    "scaled_masked_softmax": scaled_masked_softmax,
    "scaled_softmax": scaled_softmax,
    "scaled_upper_triang_masked_softmax": scaled_upper_triang_masked_softmax,
    "scaled_aligned_causal_softmax": scaled_aligned_causal_softmax,
}
PLAIN: Members = {
    "scaled_masked_softmax": _masked,
    "scaled_softmax": reference.scaled_softmax,
    "scaled_upper_triang_masked_softmax": reference.scaled_upper_triang_masked_softmax,
    "scaled_aligned_causal_softmax": reference.scaled_aligned_causal_softmax,
}
