"""The members for the loader of the gated activations: the public functions, and the same in plain torch."""

from __future__ import annotations

import functools

from torch import Tensor

from precast.ops._folders import Members
from precast.ops.activations import gelu_and_mul, gelu_tanh_and_mul, mul_and_silu, reference, silu_and_mul


def _plain(kind: int, x: Tensor) -> Tensor:
    return reference.gated_activation(x, kind)


# In the order of the schema's kinds.
KERNELS: Members = {
    "silu_and_mul": silu_and_mul,
    "gelu_and_mul": gelu_and_mul,
    "gelu_tanh_and_mul": gelu_tanh_and_mul,
    "mul_and_silu": mul_and_silu,
}
PLAIN: Members = {name: functools.partial(_plain, kind) for kind, name in enumerate(KERNELS)}
