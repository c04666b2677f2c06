"""The members for the loader of the activations: the public functions, and the same in plain torch."""

from __future__ import annotations

import functools

from torch import Tensor

from precast.ops._folders import Members
from precast.ops.activations import (
    QUICK,
    GatedKind,
    fatrelu_and_mul,
    gelu_and_mul,
    gelu_new,
    gelu_quick,
    gelu_tanh_and_mul,
    mul_and_silu,
    reference,
    silu_and_mul,
    swigluoai_and_mul,
)


def _plain(kind: int, x: Tensor, up: Tensor | None = None, *, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    if up is None:
        return reference.gated_activation(x, kind, alpha, limit)
    return reference.activation(x, up, kind, alpha, limit)


def _plain_fatrelu(x: Tensor, up: Tensor | None = None, *, threshold: float = 0.0) -> Tensor:
    return _plain(GatedKind.FATRELU_AND_MUL, x, up, alpha=threshold)


def _plain_alone(kind: int, x: Tensor) -> Tensor:
    return reference.activation(x, None, kind, QUICK)


KERNELS: Members = {
    "silu_and_mul": silu_and_mul,
    "gelu_and_mul": gelu_and_mul,
    "gelu_tanh_and_mul": gelu_tanh_and_mul,
    "mul_and_silu": mul_and_silu,
    "fatrelu_and_mul": fatrelu_and_mul,
    "swigluoai_and_mul": swigluoai_and_mul,
    "gelu_quick": gelu_quick,
    "gelu_new": gelu_new,
}
PLAIN: Members = {
    "silu_and_mul": functools.partial(_plain, GatedKind.SILU_AND_MUL),
    "gelu_and_mul": functools.partial(_plain, GatedKind.GELU_AND_MUL),
    "gelu_tanh_and_mul": functools.partial(_plain, GatedKind.GELU_TANH_AND_MUL),
    "mul_and_silu": functools.partial(_plain, GatedKind.MUL_AND_SILU),
    "fatrelu_and_mul": _plain_fatrelu,
    "swigluoai_and_mul": functools.partial(_plain, GatedKind.SWIGLUOAI_AND_MUL, alpha=1.702, limit=7.0),
    "gelu_quick": functools.partial(_plain_alone, GatedKind.GELU_QUICK),
    "gelu_new": functools.partial(_plain_alone, GatedKind.GELU_NEW),
}
