"""The image ops in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from precast.ops._twin_rows import on
from precast.ops.image import _common

_BLOCK = 1024
_TANH, _SIGMOID, _ELU = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
_SELU, _SOFTPLUS = tl.constexpr(6), tl.constexpr(7)
_SCALE, _DEPTH = tl.constexpr(1.0507009873554805), tl.constexpr(1.7580993408473766)


@triton.jit  # type: ignore[untyped-decorator]
def _curve(u: tl.tensor, alpha: tl.tensor, act: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The value and the slope of an activation. Exponentials are taken of ``-abs(u)``, so nothing overflows."""
    if act < _TANH:
        below = 1.0 if act == 0 else (0.0 if act == 1 else alpha)
        value = tl.where(u < 0, 0.0 if act == 1 else u * below, u)
        slope = tl.where(u > 0, 1.0, below + u * 0.0)
    else:
        far = tl.where(u < 0, u, -u)
        e = tl.exp(far + far) if act == _TANH else tl.exp(far)
        share = 1.0 / (1.0 + e)
        upper = tl.where(u < 0, e * share, share)
        middle = e * share * share
        if act == _TANH:
            size = tl.where(
                far > -0.05, -far * (1.0 - far * far * (1.0 / 3.0 - far * far * (2.0 / 15.0))), (1.0 - e) * share
            )
            value, slope = tl.where(u < 0, -size, size), 4.0 * middle
        elif act == _SIGMOID:
            value, slope = upper, middle
        elif act == _ELU or act == _SELU:  # noqa: SIM109 - Triton
            # exp(u) - 1 by its series near zero, where the difference would lose digits
            near = u * (1.0 + u * (0.5 + u * (1.0 / 6.0 + u * (1.0 / 24.0))))
            m = tl.where(far > -0.05, near, e - 1.0)
            scale = _SCALE if act == _SELU else 1.0
            depth = _DEPTH if act == _SELU else 1.0
            value, slope = tl.where(u > 0, scale * u, depth * m), tl.where(u > 0, scale + u * 0.0, depth * e)
        elif act == _SOFTPLUS:
            value, slope = tl.where(u < 0, 0.0, u) + tl.log(1.0 + e), upper
        else:
            value, slope = u * upper, upper + u * middle
    return value, slope


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    x: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    channels: tl.tensor,
    inner: tl.tensor,
    alpha: tl.tensor,
    gain: tl.tensor,
    clamp: tl.tensor,
    has_bias: tl.constexpr,
    wide: tl.constexpr,
    act: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    number = tl.float64 if wide else tl.float32
    u = tl.load(x + at, mask=inside, other=0.0).to(number)
    if has_bias:
        u += tl.load(bias + at // inner % channels, mask=inside, other=0.0).to(number)
    value, _ = _curve(u, alpha, act)
    value = gain * value
    limit = clamp
    if clamp >= 0:
        value = tl.where(value >= limit, limit, tl.where(value <= -limit, -limit, value))
    tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(
    grad: tl.tensor,
    saved: tl.tensor,
    bias: tl.tensor,
    grad_x: tl.tensor,
    exact: tl.tensor,
    count: tl.tensor,
    channels: tl.tensor,
    inner: tl.tensor,
    alpha: tl.tensor,
    gain: tl.tensor,
    clamp: tl.tensor,
    has_saved: tl.constexpr,
    has_bias: tl.constexpr,
    of_output: tl.constexpr,
    summed: tl.constexpr,
    wide: tl.constexpr,
    act: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    number = tl.float64 if wide else tl.float32
    result = tl.load(grad + at, mask=inside, other=0.0).to(number) * gain
    if has_saved:
        u = tl.load(saved + at, mask=inside, other=0.0).to(number)
        if has_bias:
            u += tl.load(bias + at // inner % channels, mask=inside, other=0.0).to(number)
        value, slope = _curve(u, alpha, act)
        value = u if of_output else gain * value
        result = result * slope
        if clamp >= 0:
            limit = clamp
            result = tl.where((value >= limit) | (value <= -limit), 0.0, result)
    tl.store(grad_x + at, result.to(grad_x.dtype.element_ty), mask=inside)
    if summed:
        tl.store(exact + at, result, mask=inside)


def bias_act(x: Tensor, bias: Tensor | None, dim: int, act: int, alpha: float, gain: float, clamp: float) -> Tensor:
    """The same as the op."""
    last = (bias is None or dim == 1) and _common.is_channels_last(x)
    y = _common.empty_ordered(x.shape, last, x)
    if x.numel() > 0:
        given, (channels, inner) = _ordered(x, last), _channels(x, bias, dim, last)
        vector = given if bias is None else bias.contiguous()
        with on(x):
            _forward[(triton.cdiv(x.numel(), _BLOCK),)](
                *(given, vector, y, x.numel(), channels, inner, alpha, gain, clamp),
                has_bias=bias is not None,
                wide=x.dtype == torch.float64,
                act=act,
                block=_BLOCK,
            )
    return y


def bias_act_backward(
    grad: Tensor,
    saved: Tensor | None,
    bias: Tensor | None,
    dim: int,
    act: int,
    alpha: float,
    gain: float,
    clamp: float,
    of_output: bool,
    bias_grad: bool,
) -> tuple[Tensor, Tensor]:
    """The same as the op. The bias's gradient is summed by torch, in the precision of the arithmetic."""
    like = grad if saved is None else saved
    last = (bias is None or dim == 1) and _common.is_channels_last(like)
    grad_x = _common.empty_ordered(like.shape, last, like)
    wide = like.dtype == torch.float64
    if of_output and clamp >= 0:
        clamp = float(torch.tensor(clamp).to(like.dtype))  # as the result has it
    exact = torch.empty_like(grad_x, dtype=torch.float64 if wide else torch.float32) if bias_grad else grad_x
    if like.numel() > 0:
        slopes = _ordered(grad, last)
        values = slopes if saved is None else _ordered(saved, last)
        channels, inner = _channels(like, bias, dim, last)
        reads_bias = bias is not None and not of_output
        vector = bias.contiguous() if bias is not None and reads_bias else slopes
        with on(like):
            _backward[(triton.cdiv(like.numel(), _BLOCK),)](
                *(slopes, values, vector, grad_x, exact, like.numel(), channels, inner),
                *(alpha, gain, clamp),
                has_saved=saved is not None,
                has_bias=reads_bias,
                of_output=of_output,
                summed=bias_grad,
                wide=wide,
                act=act,
                block=_BLOCK,
            )
    if not bias_grad or bias is None:
        return grad_x, (like if bias is None else bias).new_empty(0)
    others = [i for i in range(like.dim()) if i != dim]
    return grad_x, (exact.sum(others) if others else exact).to(bias.dtype)


def _ordered(x: Tensor, last: bool) -> Tensor:
    if not last:
        return x.contiguous()
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def _channels(x: Tensor, bias: Tensor | None, dim: int, last: bool) -> tuple[int, int]:
    """The number of channels, and the elements in memory from one to the next."""
    if bias is None:
        return 1, 1
    return x.shape[dim], 1 if last else x.shape[dim + 1 :].numel()


@triton.jit  # type: ignore[untyped-decorator]
def _upfirdn2d(
    x: tl.tensor,
    taps: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    in_y: tl.tensor,
    in_x: tl.tensor,
    out_y: tl.tensor,
    out_x: tl.tensor,
    taps_y: tl.tensor,
    taps_x: tl.tensor,
    up_y: tl.tensor,
    up_x: tl.tensor,
    down_y: tl.tensor,
    down_x: tl.tensor,
    pad_y: tl.tensor,
    pad_x: tl.tensor,
    wide: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    plane = at // out_x // out_y
    top = at // out_x % out_y * down_y - pad_y
    left = at % out_x * down_x - pad_x
    number = tl.float64 if wide else tl.float32
    result = tl.zeros((block,), number)
    for ty in range(taps_y):
        row = top + ty
        meets = inside & (row >= 0) & (row < in_y * up_y) & (row % up_y == 0)
        for tx in range(taps_x):
            column = left + tx
            there = meets & (column >= 0) & (column < in_x * up_x) & (column % up_x == 0)
            pixel = (plane * in_y + row // up_y) * in_x + column // up_x
            factor = tl.load(taps + ty * taps_x + tx).to(number)
            result += factor * tl.load(x + pixel, mask=there, other=0.0).to(number)
    tl.store(y + at, result.to(y.dtype.element_ty), mask=inside)


def upfirdn2d(
    x: Tensor,
    filter: Tensor,  # noqa: A002 - the schema's name
    up_x: int,
    up_y: int,
    down_x: int,
    down_y: int,
    pad_x0: int,
    pad_x1: int,
    pad_y0: int,
    pad_y1: int,
    flip: bool,
    gain: float,
) -> Tensor:
    """The same as the op, in contiguous memory."""
    (height, width), (taps_y, taps_x) = x.shape[2:], filter.shape
    out_y = (height * up_y + pad_y0 + pad_y1 - taps_y) // down_y + 1
    out_x = (width * up_x + pad_x0 + pad_x1 - taps_x) // down_x + 1
    y = x.new_empty(*x.shape[:2], out_y, out_x)
    wide = x.dtype == torch.float64
    taps = filter.to(torch.float64 if wide else torch.float32) * gain
    if not flip:
        taps = taps.flip(0, 1)
    if y.numel() > 0:
        with on(x):
            _upfirdn2d[(triton.cdiv(y.numel(), _BLOCK),)](
                *(x.contiguous(), taps.contiguous(), y, y.numel(), height, width, out_y, out_x, taps_y, taps_x),
                *(up_y, up_x, down_y, down_x, pad_y0, pad_x0),
                wide=wide,
                block=_BLOCK,
            )
    return _ordered(y, _common.is_channels_last(x))
