"""The image ops in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor

from precast.ops._reference import wide, without_autocast
from precast.ops.image import _common

_RELU, _LEAKY = 1, 2
_FUNCTIONS: tuple[Callable[[Tensor, float], Tensor], ...] = (
    lambda u, alpha: u,
    lambda u, alpha: torch.relu(u),
    F.leaky_relu,  # at zero, like the kernels, with the slope of what is below
    lambda u, alpha: torch.tanh(u),
    lambda u, alpha: torch.sigmoid(u),
    lambda u, alpha: F.elu(u),
    lambda u, alpha: F.selu(u),
    lambda u, alpha: torch.logaddexp(u, torch.zeros_like(u)),
    lambda u, alpha: u * torch.sigmoid(u),
)


def bias_act(x: Tensor, bias: Tensor | None, dim: int, act: int, alpha: float, gain: float, clamp: float) -> Tensor:
    """``clamp(gain * act(x + bias))``, rounded once; where it is clamped the gradient is zero."""
    v = gain * _FUNCTIONS[act](_biased(x, bias, dim), alpha)
    if clamp >= 0:
        limit = torch.full((), clamp, dtype=v.dtype, device=v.device)
        # Where the slope comes from the result, what is rounded to the clamp counts as clamped.
        rounds = _common.from_output(x, bias, act, alpha, gain)
        reached, end = (v.detach().to(x.dtype), limit.to(x.dtype)) if rounds else (v, limit)
        v = torch.where(reached >= end, limit, torch.where(reached <= -end, -limit, v))
    return v.to(x.dtype)


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
    """The gradients of ``x`` and ``bias``; the latter is empty unless it is wanted."""
    slope = _slope(wide(grad), saved, bias, dim, act, alpha, gain, clamp, of_output)
    grad_x = wide(grad) * slope
    if not bias_grad or bias is None:
        return grad_x.to(grad.dtype), (grad if bias is None else bias).new_empty(0)
    others = [i for i in range(grad.dim()) if i != dim]
    grad_bias = grad_x.sum(others) if others else grad_x.clone()
    return grad_x.to(grad.dtype), grad_bias.to(bias.dtype)


@without_autocast
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
    """Put zeros between pixels, pad, convolve with ``conv2d``, and keep every ``down``-th pixel."""
    images, channels, height, width = x.shape
    pixels = wide(x)
    # Zeros behind each pixel, along both axes.
    spread = F.pad(pixels[:, :, :, None, :, None], (0, up_x - 1, 0, 0, 0, up_y - 1))
    spread = spread.reshape(images, channels, height * up_y, width * up_x)
    padded = F.pad(spread, [max(pad, 0) for pad in (pad_x0, pad_x1, pad_y0, pad_y1)])
    bottom, right = padded.shape[2] + min(pad_y1, 0), padded.shape[3] + min(pad_x1, 0)
    padded = padded[:, :, max(-pad_y0, 0) : bottom, max(-pad_x0, 0) : right]
    taps = filter.to(pixels.dtype) * gain
    if not flip:
        taps = taps.flip(0, 1)
    planes = padded.reshape(images * channels, 1, *padded.shape[2:])
    if planes.shape[0] == 0:
        y = planes[..., : planes.shape[2] - taps.shape[0] + 1, : planes.shape[3] - taps.shape[1] + 1]
    else:
        y = F.conv2d(planes, taps[None, None])
    y = y[:, :, ::down_y, ::down_x]
    return y.reshape(images, channels, *y.shape[2:]).to(x.dtype)


def _biased(x: Tensor, bias: Tensor | None, dim: int) -> Tensor:
    u = wide(x)
    if bias is None:
        return u
    return u + wide(bias).reshape([-1 if i == dim else 1 for i in range(x.dim())])


def _slope(
    like: Tensor,
    saved: Tensor | None,
    bias: Tensor | None,
    dim: int,
    act: int,
    alpha: float,
    gain: float,
    clamp: float,
    of_output: bool,
) -> Tensor:
    """``gain * act'``, and zero where the result is clamped; differentiable in ``saved`` and ``bias``."""
    if saved is None:
        return torch.full_like(like, gain)
    u = _biased(saved, None if of_output else bias, dim)
    below = 1.0 if act < _RELU else 0.0 if act == _RELU else alpha
    if act <= _LEAKY:
        value = u if of_output else gain * _FUNCTIONS[act](u, alpha)
        slope = torch.where(u > 0, torch.ones_like(u), torch.full_like(u, below))
    else:
        value = gain * _FUNCTIONS[act](u, alpha)
        slope = _SLOPES[act](u)
    if clamp >= 0:
        end = torch.full((), clamp, dtype=value.dtype, device=value.device)
        end = end.to(saved.dtype).to(value.dtype) if of_output else end
        slope = torch.where((value >= end) | (value <= -end), 0.0, slope)
    return gain * slope


_SCALE, _DEPTH = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717  # of selu
_SLOPES: dict[int, Callable[[Tensor], Tensor]] = {
    3: lambda u: 1 - torch.tanh(u).square(),
    4: lambda u: torch.sigmoid(u) * torch.sigmoid(-u),
    5: lambda u: torch.where(u > 0, 1.0, torch.exp(u.clamp(max=0))),
    6: lambda u: _SCALE * torch.where(u > 0, 1.0, _DEPTH * torch.exp(u.clamp(max=0))),
    7: torch.sigmoid,
    8: lambda u: torch.sigmoid(u) * (1 + u * torch.sigmoid(-u)),
}
