"""The members for the loader of the image ops: the public functions, and the same in plain torch."""

from __future__ import annotations

from torch import Tensor

from precast.ops._folders import Members
from precast.ops.image import (
    _bias_act,
    _upfirdn2d,
    bias_act,
    downsample2d,
    filter2d,
    fused_leaky_relu,
    reference,
    setup_filter,
    upfirdn2d,
    upsample2d,
)
from precast.ops.image._upfirdn2d import Steps


def _plain_bias_act(
    x: Tensor,
    b: Tensor | None = None,
    dim: int = 1,
    act: str = "linear",
    alpha: float | None = None,
    gain: float | None = None,
    clamp: float | None = None,
) -> Tensor:
    return reference.bias_act(*_bias_act.arguments(x, b, dim, act, alpha, gain, clamp))


def _plain_fused_leaky_relu(
    x: Tensor, bias: Tensor | None = None, negative_slope: float = 0.2, scale: float = 2**0.5
) -> Tensor:
    return _plain_bias_act(x, bias, act="lrelu", alpha=negative_slope, gain=scale)


def _plain_upfirdn2d(
    x: Tensor,
    f: Tensor | None,
    up: Steps = 1,
    down: Steps = 1,
    padding: Steps = 0,
    flip_filter: bool = False,
    gain: float = 1.0,
) -> Tensor:
    return _upfirdn2d.through(reference.upfirdn2d, x, f, up, down, padding, flip_filter, gain)


def _plain_filter2d(
    x: Tensor, f: Tensor | None, padding: Steps = 0, flip_filter: bool = False, gain: float = 1.0
) -> Tensor:
    return _plain_upfirdn2d(x, f, 1, 1, _upfirdn2d.around_filtered(f, padding), flip_filter, gain)


def _plain_upsample2d(
    x: Tensor, f: Tensor | None, up: Steps = 2, padding: Steps = 0, flip_filter: bool = False, gain: float = 1.0
) -> Tensor:
    up_x, up_y = (up, up) if isinstance(up, int) else up
    around = _upfirdn2d.around_upsampled(f, up, padding)
    return _plain_upfirdn2d(x, f, up, 1, around, flip_filter, gain * up_x * up_y)


def _plain_downsample2d(
    x: Tensor, f: Tensor | None, down: Steps = 2, padding: Steps = 0, flip_filter: bool = False, gain: float = 1.0
) -> Tensor:
    return _plain_upfirdn2d(x, f, 1, down, _upfirdn2d.around_downsampled(f, down, padding), flip_filter, gain)


KERNELS: Members = {
    "bias_act": bias_act,
    "fused_leaky_relu": fused_leaky_relu,
    "setup_filter": setup_filter,
    "upfirdn2d": upfirdn2d,
    "filter2d": filter2d,
    "upsample2d": upsample2d,
    "downsample2d": downsample2d,
}
PLAIN: Members = {
    "bias_act": _plain_bias_act,
    "fused_leaky_relu": _plain_fused_leaky_relu,
    "setup_filter": setup_filter,
    "upfirdn2d": _plain_upfirdn2d,
    "filter2d": _plain_filter2d,
    "upsample2d": _plain_upsample2d,
    "downsample2d": _plain_downsample2d,
}
