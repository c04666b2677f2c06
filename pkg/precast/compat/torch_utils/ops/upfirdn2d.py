"""``upfirdn2d`` and the functions made of it. ``impl`` is not used: the op runs where ``x`` is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from precast.ops import image
from precast.ops.image import _upfirdn2d

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def setup_filter(
    f: Tensor | Sequence[float] | float | None,
    device: torch.device | str = "cpu",
    normalize: bool = True,
    flip_filter: bool = False,
    gain: float = 1,
    separable: bool | None = None,
) -> Tensor:
    """:func:`precast.ops.setup_filter`."""
    return image.setup_filter(f, device, normalize, flip_filter, gain, separable)


def upfirdn2d(
    x: Tensor,
    f: Tensor | None,
    up: int | Sequence[int] = 1,
    down: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    flip_filter: bool = False,
    gain: float = 1,
    impl: str = "cuda",
) -> Tensor:
    """:func:`precast.ops.upfirdn2d`."""
    return image.upfirdn2d(x, f, up, down, padding, flip_filter, gain)


def filter2d(
    x: Tensor,
    f: Tensor | None,
    padding: int | Sequence[int] = 0,
    flip_filter: bool = False,
    gain: float = 1,
    impl: str = "cuda",
) -> Tensor:
    """:func:`precast.ops.filter2d`."""
    return image.filter2d(x, f, padding, flip_filter, gain)


def upsample2d(
    x: Tensor,
    f: Tensor | None,
    up: int | Sequence[int] = 2,
    padding: int | Sequence[int] = 0,
    flip_filter: bool = False,
    gain: float = 1,
    impl: str = "cuda",
) -> Tensor:
    """:func:`precast.ops.upsample2d`."""
    return image.upsample2d(x, f, up, padding, flip_filter, gain)


def downsample2d(
    x: Tensor,
    f: Tensor | None,
    down: int | Sequence[int] = 2,
    padding: int | Sequence[int] = 0,
    flip_filter: bool = False,
    gain: float = 1,
    impl: str = "cuda",
) -> Tensor:
    """:func:`precast.ops.downsample2d`."""
    return image.downsample2d(x, f, down, padding, flip_filter, gain)


# Other modules of such repositories import these two.
def _parse_padding(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """The padding before and behind, along x and along y."""
    return _upfirdn2d.spread_padding(padding)


def _get_filter_size(f: Tensor | None) -> tuple[int, int]:
    """The width and the height of a filter."""
    return _upfirdn2d.filter_size(f)
