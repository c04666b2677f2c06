"""``upfirdn2d`` and the functions made of it, and below them the formulas of the op.

The gradient of ``upfirdn2d`` is another ``upfirdn2d``, with ``up`` and ``down`` swapped, the filter reversed and
another padding. So one op serves gradients of any order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.routes import Route
from precast.ops import _checks
from precast.ops._fx import Proxy, recorded
from precast.ops.image import _common

_MOST = 1 << 30  # what sizes, steps and padding may be at most
_SEPARABLE_FROM = 8  # taps from which setup_filter keeps a filter of one dimension as it is

Steps: TypeAlias = "int | Sequence[int]"


class _Axis(NamedTuple):
    """One direction of an image: steps and padding."""

    up: int
    down: int
    pad0: int
    pad1: int

    def out(self, size: int, taps: int) -> int:
        """The pixels of the result."""
        return (size * self.up + self.pad0 + self.pad1 - taps) // self.down + 1

    def backward(self, size: int, taps: int) -> _Axis:
        """The axis that takes a gradient back.

        Tap ``t`` carries pixel ``i`` to result ``o`` where ``o * down - pad0 + t == i * up``. Read for ``i`` instead of
        ``o``, with the taps counted from the other end, this gives the padding before; the size gives that behind.
        """
        pad1 = size * self.up - self.out(size, taps) * self.down + self.pad0 - self.up + 1
        return _Axis(self.down, self.up, taps - 1 - self.pad0, pad1)


def setup_filter(
    f: Tensor | Sequence[float] | Sequence[Sequence[float]] | float | None,
    device: torch.device | str | None = None,
    normalize: bool = True,
    flip_filter: bool = False,
    gain: float = 1.0,
    separable: bool | None = None,
) -> Tensor:
    """A filter for :func:`upfirdn2d`, made from its taps: ``gain * f / f.sum()``, or the outer product of one row.

    Args:
        f: ``(taps,)``, ``(rows, columns)``, a number (one tap), or None (one tap of 1).
        device: the device of the filter.
        normalize: divide the taps by their sum.
        flip_filter: reverse the taps.
        gain: the factor by which the filter changes the mean of an image. A separable filter is applied twice, so its
            taps have the square root of this factor.
        separable: keep one dimension, so that the filter is applied to rows and then to columns; None: from 8 taps on.

    Returns:
        A contiguous float32 tensor of one or two dimensions.

    Raises:
        ValueError: ``f`` has no taps or more than two dimensions, or ``separable`` asks for one dimension of two.

    Example::

        f = precast.ops.setup_filter([1, 3, 3, 1])
        f.shape  # (4, 4)
    """
    if isinstance(f, Proxy):
        return recorded(setup_filter, **locals())  # type: ignore[no-any-return]
    try:
        taps = torch.as_tensor(1.0 if f is None else f, dtype=torch.float32)
        if taps.dim() > 2 or taps.numel() == 0:
            raise ValueError(f"f has shape {tuple(taps.shape)}; needed one or two dimensions with at least one tap")
        if taps.dim() == 0:
            taps = taps[None]
        if separable is None:
            separable = taps.dim() == 1 and taps.numel() >= _SEPARABLE_FROM
        if separable and taps.dim() != 1:
            raise ValueError(f"separable is True and f has shape {tuple(taps.shape)}; needed one dimension")
        if taps.dim() == 1 and not separable:
            taps = torch.outer(taps, taps)
        if normalize:
            taps = taps / taps.sum()
        if flip_filter:
            taps = taps.flip(list(range(taps.dim())))
        factor = math.sqrt(gain) if taps.dim() == 1 else float(gain)
        return (taps * factor).to(device=device).contiguous()
    except _checks.CONFUSED:
        _checks.explain(setup_filter, locals())


def upfirdn2d(
    x: Tensor,
    f: Tensor | None,
    up: Steps = 1,
    down: Steps = 1,
    padding: Steps = 0,
    flip_filter: bool = False,
    gain: float = 1.0,
) -> Tensor:
    """Upsample, pad, filter and downsample images, in one pass. Differentiable to any order.

    ``up - 1`` zeros are put behind each pixel, zeros are padded around the image (a negative number crops), the filter
    is convolved with it, and every ``down``-th pixel is kept. Along an axis the result has
    ``(size * up + before + behind - taps) // down + 1`` pixels.

    Args:
        x: ``(images, channels, height, width)``; float32, float16, bfloat16 or float64, on the CPU or a GPU.
        f: float32 or narrower, ``(height, width)``, or ``(taps,)`` for a separable filter, which takes two passes; or
            None, which is one tap of 1. It is not differentiated. For a float64 ``x`` it may be float64.
        up: a number, or ``(x, y)``.
        down: a number, or ``(x, y)``.
        padding: a number, ``(x, y)``, or ``(before x, behind x, before y, behind y)``; in upsampled pixels.
        flip_filter: False: convolution. True: correlation.
        gain: multiplies the result.

    Returns:
        ``(images, channels, height, width)`` of the dtype of ``x``, contiguous or, like ``x``, in channels_last.

    Raises:
        ValueError: ``up``, ``down`` or ``padding`` has another number of elements, or ``f`` asks for a gradient.
        RuntimeError: a tensor has another shape, dtype or device; a step is below 1; or the filter is larger than the
            padded image, also because more is cropped than there is.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, f = torch.randn(2, 3, 16, 16), precast.ops.setup_filter([1, 3, 3, 1])
        y = precast.ops.upfirdn2d(x, f, up=2, padding=(2, 1, 2, 1), gain=4)  # (2, 3, 32, 32)
    """
    if isinstance(x, Proxy):
        return recorded(upfirdn2d, **locals())  # type: ignore[no-any-return]
    try:
        return through(_upfirdn2d, x, f, up, down, padding, flip_filter, gain)
    except _checks.CONFUSED:
        _checks.explain(upfirdn2d, locals())


def through(
    op: Callable[..., Tensor],
    x: Tensor,
    f: Tensor | None,
    up: Steps = 1,
    down: Steps = 1,
    padding: Steps = 0,
    flip_filter: bool = False,
    gain: float = 1.0,
) -> Tensor:
    """:func:`upfirdn2d` by an op of its schema: the kernel or the reference."""
    (up_x, up_y), (down_x, down_y) = _pair("up", up), _pair("down", down)
    before_x, behind_x, before_y, behind_y = spread_padding(padding)
    if f is None:
        f = torch.ones(1, 1, dtype=torch.float32, device=x.device)
    if f.requires_grad and torch.is_grad_enabled():
        raise ValueError("upfirdn2d has no gradient for its filter, and f requires grad; needed f.detach()")
    horizontal, vertical = _Axis(up_x, down_x, before_x, behind_x), _Axis(up_y, down_y, before_y, behind_y)
    if f.dim() != 1:
        return _call(op, x, f, horizontal, vertical, flip_filter, gain)
    # Half of the gain in each pass, so that narrow dtypes keep their range in between.
    half = math.sqrt(abs(gain))
    rest = gain / half if half else 0.0
    rows = _call(op, x, f[None], horizontal, _Axis(1, 1, 0, 0), flip_filter, half)
    return _call(op, rows, f[:, None], _Axis(1, 1, 0, 0), vertical, flip_filter, rest)


def filter2d(x: Tensor, f: Tensor | None, padding: Steps = 0, flip_filter: bool = False, gain: float = 1.0) -> Tensor:
    """Filter images; without padding the result has the size of ``x``. Differentiable to any order.

    Args:
        x: ``(images, channels, height, width)``, as in :func:`upfirdn2d`.
        f: as in :func:`upfirdn2d`.
        padding: added to the padding that keeps the size of ``x``; as in :func:`upfirdn2d`.
        flip_filter: as in :func:`upfirdn2d`.
        gain: as in :func:`upfirdn2d`.

    Returns:
        As from :func:`upfirdn2d`.

    Raises:
        ValueError: as for :func:`upfirdn2d`.
        RuntimeError: as for :func:`upfirdn2d`.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        f = precast.ops.setup_filter([1, 2, 1])
        y = precast.ops.filter2d(torch.randn(2, 3, 16, 16), f)  # (2, 3, 16, 16)
    """
    if isinstance(x, Proxy):
        return recorded(filter2d, **locals())  # type: ignore[no-any-return]
    try:
        return upfirdn2d(x, f, 1, 1, around_filtered(f, padding), flip_filter, gain)
    except _checks.CONFUSED:
        _checks.explain(filter2d, locals())


def upsample2d(
    x: Tensor,
    f: Tensor | None,
    up: Steps = 2,
    padding: Steps = 0,
    flip_filter: bool = False,
    gain: float = 1.0,
) -> Tensor:
    """Enlarge images by whole factors; without padding the result is ``up`` times as large. Differentiable.

    Args:
        x: as in :func:`upfirdn2d`.
        f: as in :func:`upfirdn2d`.
        up: the factor, or ``(x, y)``.
        padding: relative to the result of ``up`` times the size; as in :func:`upfirdn2d`.
        flip_filter: as in :func:`upfirdn2d`.
        gain: multiplies the result, in addition to the factor that keeps the mean of an image.

    Returns:
        As from :func:`upfirdn2d`.

    Raises:
        ValueError: as for :func:`upfirdn2d`.
        RuntimeError: as for :func:`upfirdn2d`.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        f = precast.ops.setup_filter([1, 3, 3, 1])
        y = precast.ops.upsample2d(torch.randn(2, 3, 16, 16), f)  # 32 x 32
    """
    if isinstance(x, Proxy):
        return recorded(upsample2d, **locals())  # type: ignore[no-any-return]
    try:
        up_x, up_y = _pair("up", up)
        return upfirdn2d(x, f, up, 1, around_upsampled(f, up, padding), flip_filter, gain * up_x * up_y)
    except _checks.CONFUSED:
        _checks.explain(upsample2d, locals())


def downsample2d(
    x: Tensor,
    f: Tensor | None,
    down: Steps = 2,
    padding: Steps = 0,
    flip_filter: bool = False,
    gain: float = 1.0,
) -> Tensor:
    """Shrink images by whole factors; without padding the result is ``1 / down`` as large. Differentiable.

    Args:
        x: as in :func:`upfirdn2d`.
        f: as in :func:`upfirdn2d`.
        down: the factor, or ``(x, y)``.
        padding: in pixels of ``x``, relative to the result of ``1 / down`` of the size; as in :func:`upfirdn2d`.
        flip_filter: as in :func:`upfirdn2d`.
        gain: as in :func:`upfirdn2d`.

    Returns:
        As from :func:`upfirdn2d`.

    Raises:
        ValueError: as for :func:`upfirdn2d`.
        RuntimeError: as for :func:`upfirdn2d`.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        f = precast.ops.setup_filter([1, 3, 3, 1])
        y = precast.ops.downsample2d(torch.randn(2, 3, 16, 16), f)  # 8 x 8
    """
    if isinstance(x, Proxy):
        return recorded(downsample2d, **locals())  # type: ignore[no-any-return]
    try:
        return upfirdn2d(x, f, 1, down, around_downsampled(f, down, padding), flip_filter, gain)
    except _checks.CONFUSED:
        _checks.explain(downsample2d, locals())


def around_filtered(f: Tensor | None, padding: Steps) -> tuple[int, int, int, int]:
    """The padding of :func:`filter2d`."""
    (width, height), (before_x, behind_x, before_y, behind_y) = filter_size(f), spread_padding(padding)
    return before_x + width // 2, behind_x + (width - 1) // 2, before_y + height // 2, behind_y + (height - 1) // 2


def around_upsampled(f: Tensor | None, up: Steps, padding: Steps) -> tuple[int, int, int, int]:
    """The padding of :func:`upsample2d`."""
    (up_x, up_y), (width, height) = _pair("up", up), filter_size(f)
    before_x, behind_x, before_y, behind_y = spread_padding(padding)
    return (
        before_x + (width + up_x - 1) // 2,
        behind_x + (width - up_x) // 2,
        before_y + (height + up_y - 1) // 2,
        behind_y + (height - up_y) // 2,
    )


def around_downsampled(f: Tensor | None, down: Steps, padding: Steps) -> tuple[int, int, int, int]:
    """The padding of :func:`downsample2d`."""
    (down_x, down_y), (width, height) = _pair("down", down), filter_size(f)
    before_x, behind_x, before_y, behind_y = spread_padding(padding)
    return (
        before_x + (width - down_x + 1) // 2,
        behind_x + (width - down_x) // 2,
        before_y + (height - down_y + 1) // 2,
        behind_y + (height - down_y) // 2,
    )


def filter_size(f: Tensor | None) -> tuple[int, int]:
    """The width and the height of a filter of one or two dimensions."""
    if f is None:
        return 1, 1
    if f.dim() not in (1, 2):
        raise ValueError(f"f has shape {tuple(f.shape)}; needed one or two dimensions")
    return int(f.shape[-1]), int(f.shape[0])


def _pair(name: str, steps: Steps) -> tuple[int, int]:
    if isinstance(steps, int):
        return steps, steps
    found = _whole(name, steps)
    if len(found) not in (1, 2):
        raise ValueError(f"{name} is {_checks.in_one_line(steps)}; needed a number, or two: x and y")
    return found[0], found[-1]


def _whole(name: str, steps: Steps) -> list[int]:
    """One whole number or several; numpy's too."""
    try:
        given: Any = steps
        return [operator.index(one) for one in (given if isinstance(given, (list, tuple)) else (given,))]
    except TypeError:
        raise ValueError(f"{name} is {_checks.in_one_line(steps)}; needed whole numbers") from None


def spread_padding(padding: Steps) -> tuple[int, int, int, int]:
    found = [padding] if isinstance(padding, int) else _whole("padding", padding)
    if len(found) == 1:
        return found[0], found[0], found[0], found[0]
    if len(found) == 2:
        x, y = found
        return x, x, y, y
    if len(found) != 4:
        raise ValueError(f"padding is {padding}; needed a number, two, or four: before and behind along x, then y")
    before_x, behind_x, before_y, behind_y = found
    return before_x, behind_x, before_y, behind_y


def _call(
    op: Callable[..., Tensor], x: Tensor, f: Tensor, horizontal: _Axis, vertical: _Axis, flip: bool, gain: float
) -> Tensor:
    steps = (horizontal.up, vertical.up, horizontal.down, vertical.down)
    return op(x, f, *steps, *horizontal[2:], *vertical[2:], flip, float(gain))


def _axes(args: Sequence[Any]) -> tuple[_Axis, _Axis]:
    """The horizontal and the vertical axis of the op's arguments after the filter."""
    up_x, up_y, down_x, down_y, pad_x0, pad_x1, pad_y0, pad_y1 = args[:8]
    return _Axis(up_x, down_x, pad_x0, pad_x1), _Axis(up_y, down_y, pad_y0, pad_y1)


class _UpFirDn2d(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], x: Tensor, f: Tensor, *args: Any) -> Tensor:
        y = compute(x, f, *args)  # checks the shapes first
        ctx.save_for_backward(f)
        ctx.size, ctx.args = (x.shape[3], x.shape[2]), args
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (f,) = ctx.saved_tensors
        if ctx.needs_input_grad[2]:
            raise RuntimeError(
                "upfirdn2d has no gradient for its filter, and filter requires grad; needed filter.detach()"
            )
        axes = _axes(ctx.args)
        horizontal, vertical = (
            axis.backward(size, taps) for axis, size, taps in zip(axes, ctx.size, filter_size(f), strict=True)
        )
        *_, flip, gain = ctx.args
        return (None, _call(_upfirdn2d, grad, f, horizontal, vertical, not flip, gain), *(None for _ in range(11)))


def _check(op: str, x: Tensor, f: Tensor, *args: Any) -> None:
    _common.check_dtype(op, x)
    _checks.require(
        x.dim() == 4 and x.shape[2] > 0 and x.shape[3] > 0,
        lambda: f"{op}: x has shape {tuple(x.shape)}; needed (images, channels, height, width) with at least one pixel",
    )
    _checks.require(
        f.dim() == 2 and 0 < f.numel() <= _MOST,
        lambda: f"{op}: filter has shape {tuple(f.shape)}; needed (height, width) with at least one tap",
    )
    wide = x.dtype == torch.float64
    _checks.require(
        f.dtype in _checks.FLOAT_TYPES or (wide and f.dtype == torch.float64),
        lambda: (
            f"{op}: filter is {_checks.dtype_name(f)} and x is {_checks.dtype_name(x)}; needed a float32 filter "
            f"or a narrower one{', or float64' if wide else ''}"
        ),
    )
    _checks.same_device(op, "filter", f, x)
    horizontal, vertical = _axes(args)
    _check_axis("y", vertical, x.shape[2], f.shape[0])
    _check_axis("x", horizontal, x.shape[3], f.shape[1])


def _check_axis(name: str, axis: _Axis, size: int, taps: int) -> None:
    op = "upfirdn2d"
    _checks.require(
        axis.up >= 1 and axis.down >= 1,
        lambda: f"{op}: up_{name} is {axis.up} and down_{name} is {axis.down}; needed 1 or more",
    )
    for value in (size, size * axis.up, axis.down, axis.pad0, -axis.pad0, axis.pad1, -axis.pad1):
        _checks.require(value <= _MOST, lambda: f"{op}: along {name} a size, a step or a padding is beyond 2^30")
    padded = size * axis.up + axis.pad0 + axis.pad1
    text = (
        f"{op}: along {name} the image has {padded} pixels after upsampling and padding; needed at least the {taps} "
        "taps of the filter and at most 2^30"
    )
    _checks.require(padded >= taps, lambda: text)
    _checks.require(padded <= _MOST, lambda: text)


def _result(x: Tensor, f: Tensor, *args: Any) -> Tensor:
    horizontal, vertical = _axes(args)
    sizes = (*x.shape[:2], vertical.out(x.shape[2], f.shape[0]), horizontal.out(x.shape[3], f.shape[1]))
    return _common.empty_ordered(sizes, _common.is_channels_last(x), x)


with namespace.family("upfirdn2d", __package__):
    UPFIRDN2D = register(
        "upfirdn2d",
        check=lambda op, x, filter, **steps: _check(op, x, filter, *steps.values()),  # noqa: A006 - of the schema
        result=lambda op, x, filter, **steps: _result(x, filter, *steps.values()),  # noqa: A006
        gradient=_UpFirDn2d.apply,
    )

_upfirdn2d = Route(UPFIRDN2D, _UpFirDn2d)
