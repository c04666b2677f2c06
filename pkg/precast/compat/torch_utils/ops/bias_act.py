"""``bias_act``, and ``activation_funcs`` with the defaults of each activation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precast.ops import image

if TYPE_CHECKING:
    from torch import Tensor

activation_funcs = dict(image.ACTIVATIONS)


def bias_act(
    x: Tensor,
    b: Tensor | None = None,
    dim: int = 1,
    act: str = "linear",
    alpha: float | None = None,
    gain: float | None = None,
    clamp: float | None = None,
    impl: str = "cuda",
) -> Tensor:
    """:func:`precast.ops.bias_act`. ``impl`` is not used: the op runs where ``x`` is, and has no slower version."""
    return image.bias_act(x, b, dim, act, alpha, gain, clamp)
