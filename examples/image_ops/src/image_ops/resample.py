"""Upsample, filter, downsample, differentiable to any order."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from image_ops.compiled import kernel as compiled


class _Axis(NamedTuple):
    """One direction of an image."""

    up: int
    down: int
    pad0: int
    pad1: int

    def reversed(self, size: int, out: int, taps: int) -> _Axis:
        """What takes a gradient back: the zeros put in are left out, the samples left out are put in, as zeros.

        A tap that carried sample i to output o has the number i * up + pad0 - o * down; with the kernel read the other
        way, these numbers ask for pad0' = taps - 1 - pad0, and the size asks for pad1'.
        """
        pad1 = (size - 1) * self.up - out * self.down + self.pad0 + 1
        return _Axis(self.down, self.up, taps - 1 - self.pad0, pad1)


def upfirdn2d(x: Tensor, kernel: Tensor, up: int = 1, down: int = 1, pad: tuple[int, int] = (0, 0)) -> Tensor:
    """Put ``up - 1`` zeros behind every sample, pad, convolve with ``kernel``, keep every ``down``-th sample.

    The last two dimensions of ``x`` are the image; ``pad`` is before and after, in both directions; negative crops.
    There is no gradient for ``kernel``, which must not ask for one.
    """
    if kernel.requires_grad:
        raise ValueError("upfirdn2d has no gradient for its kernel: pass kernel.detach()")
    axis = _Axis(up, down, *pad)
    return _apply(x, kernel, axis, axis)


def _apply(x: Tensor, kernel: Tensor, vertical: _Axis, horizontal: _Axis) -> Tensor:
    out: Tensor = _UpFirDn2d.apply(x, kernel, vertical, horizontal)
    return out


class _UpFirDn2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, vertical: _Axis, horizontal: _Axis) -> Tensor:
        out: Tensor = compiled("upfirdn2d").upfirdn2d(
            x,
            kernel,
            up_x=horizontal.up,
            up_y=vertical.up,
            down_x=horizontal.down,
            down_y=vertical.down,
            pad_x0=horizontal.pad0,
            pad_x1=horizontal.pad1,
            pad_y0=vertical.pad0,
            pad_y1=vertical.pad1,
        )
        ctx.save_for_backward(kernel)
        ctx.axes = (
            vertical.reversed(x.shape[-2], out.shape[-2], kernel.shape[0]),
            horizontal.reversed(x.shape[-1], out.shape[-1], kernel.shape[1]),
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        (kernel,) = ctx.saved_tensors
        return _apply(grad_output, kernel.flip(0, 1), *ctx.axes), None, None, None
