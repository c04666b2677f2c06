"""Functions with the layout of ``op`` in PyTorch ports of StyleGAN2, on top of precast's ops.

Code written for ``op`` works if you change the import::

    from precast.compat.op import FusedLeakyReLU, fused_leaky_relu, upfirdn2d
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from precast.ops import image
from precast.ops.image._module import FusedLeakyReLU

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FusedLeakyReLU", "fused_leaky_relu", "upfirdn2d"]


def fused_leaky_relu(
    input: Tensor,  # noqa: A002 - a name to keep
    bias: Tensor | None = None,
    negative_slope: float = 0.2,
    scale: float = 2**0.5,
) -> Tensor:
    """:func:`precast.ops.fused_leaky_relu`."""
    return image.fused_leaky_relu(input, bias, negative_slope, scale)


def upfirdn2d(
    input: Tensor,  # noqa: A002 - a name to keep
    kernel: Tensor,
    up: int | Sequence[int] = 1,
    down: int | Sequence[int] = 1,
    pad: Sequence[int] = (0, 0),
) -> Tensor:
    """:func:`precast.ops.upfirdn2d`. Two numbers in ``pad`` are before and behind, along x and along y."""
    around = (*pad, *pad) if len(pad) == 2 else pad
    return image.upfirdn2d(input, kernel, up, down, around)
