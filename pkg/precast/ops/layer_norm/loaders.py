"""The members for the loader of layer norm: the public function, and the same in plain torch."""

from __future__ import annotations

from torch import Tensor

from precast.ops._folders import Members
from precast.ops.layer_norm import layer_norm, reference


def _plain(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """``precast.ops.layer_norm`` in plain torch."""
    return reference.layer_norm(x, weight, bias, eps)


KERNELS: Members = {"layer_norm": layer_norm}
PLAIN: Members = {"layer_norm": _plain}
