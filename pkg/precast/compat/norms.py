"""The functions of the older package's layer norm and of apex's ``fused_layer_norm_cuda``, on top of precast's ops.

``normalized_shape`` are the last dimensions of ``input``, and parameters have this shape. The statistics, float32 with
one number for each row, cost a pass of their own; the backward functions compute them again, because our kernels need
none. With ``memory_efficient`` a backward function is given the output in place of the input, as in apex: torch's ops
compute the input from it, and a parameter nearer to zero than ``eps`` counts as ``eps``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from precast.compat.members import kernel

__all__ = [
    "backward",
    "backward_affine",
    "forward",
    "forward_affine",
    "forward_affine_mixed_dtypes",
    "rms_backward",
    "rms_backward_affine",
    "rms_forward",
    "rms_forward_affine",
    "rms_forward_affine_mixed_dtypes",
]


Shape: TypeAlias = "Sequence[int]"

_CAST_ONCE = 0  # the ops' casting mode with a single rounding at the end


class _LayerNorm:
    """Layer norm over rows: its ops, and its statistics, a mean and an inverse standard deviation for each row."""

    def forward(
        self, rows: Tensor, eps: float, gamma: Tensor | None = None, beta: Tensor | None = None
    ) -> list[Tensor]:
        y = kernel("layer_norm")(rows, gamma, beta, eps)
        variance, mean = torch.var_mean(rows.float(), -1, correction=0)
        return [y, mean, (variance + eps).rsqrt()]

    def backward(self, grad: Tensor, rows: Tensor, eps: float, gamma: Tensor | None = None) -> Sequence[Tensor]:
        affine = gamma is not None
        grads: Sequence[Tensor] = kernel("layer_norm_backward")(grad, rows, gamma, eps, affine, affine)
        return grads


class _RMSNorm(_LayerNorm):
    """RMS norm over rows: its ops, and its statistic, the inverse root of the mean square of each row."""

    def forward(
        self, rows: Tensor, eps: float, gamma: Tensor | None = None, beta: Tensor | None = None
    ) -> list[Tensor]:
        y = kernel("rms_norm")(rows, _weight(rows, gamma), eps, _CAST_ONCE)
        return [y, (rows.float().square().mean(-1) + eps).rsqrt()]

    def backward(self, grad: Tensor, rows: Tensor, eps: float, gamma: Tensor | None = None) -> Sequence[Tensor]:
        grads: Sequence[Tensor] = kernel("rms_norm_backward")(grad, rows, _weight(rows, gamma), eps, _CAST_ONCE)
        return grads


def _weight(rows: Tensor, gamma: Tensor | None) -> Tensor:
    return rows.new_ones(rows.shape[1]) if gamma is None else gamma


def _forward(norm: _LayerNorm, x: Tensor, shape: Shape, eps: float, *parameters: Tensor) -> list[Tensor]:
    """The norm of ``x``, and its statistics."""
    rows = _rows(x, shape, *parameters)
    with torch.no_grad():
        y, *statistics = norm.forward(rows, eps, *(one.reshape(-1) for one in parameters))
    return [y.reshape(x.shape), *statistics]


def _mixed(norm: _LayerNorm, x: Tensor, shape: Shape, eps: float, *parameters: Tensor) -> list[Tensor]:
    """The same for parameters of any dtype; the norm has that of ``gamma``, the first."""
    alike, *given = _alike(x, *parameters)
    y, *statistics = _forward(norm, alike, shape, eps, *given)
    return [y.to(parameters[0].dtype), *statistics]


def _backward(
    norm: _LayerNorm,
    dout: Tensor,
    invvar: Tensor,
    x: Tensor,
    shape: Shape,
    eps: float,
    memory_efficient: bool,
    *parameters: Tensor,
) -> list[Tensor]:
    """The gradients for ``x`` and for the parameters."""
    rows = _rows(x, shape, *parameters)
    with torch.no_grad():
        given = _restored(rows, invvar, eps, *parameters) if memory_efficient else rows
        grad, given, *weight = _for_backward(
            dout.reshape(rows.shape), given, *(one.reshape(-1) for one in parameters[:1])
        )
        grads = norm.backward(grad, given, eps, *weight)
    wanted = (x, *parameters)
    return [grad.reshape(one.shape).to(one.dtype) for grad, one in zip(grads[: len(wanted)], wanted, strict=True)]


_LAYER, _RMS = _LayerNorm(), _RMSNorm()


def forward(input: Tensor, normalized_shape: Shape, eps: float) -> list[Tensor]:  # noqa: A002 - a name to keep
    """The norm without parameters, and for each row the mean and the inverse standard deviation."""
    return _forward(_LAYER, input, normalized_shape, eps)


def forward_affine(input: Tensor, normalized_shape: Shape, gamma: Tensor, beta: Tensor, eps: float) -> list[Tensor]:  # noqa: A002
    """The norm in the dtype of ``gamma``, and for each row the mean and the inverse standard deviation."""
    return _mixed(_LAYER, input, normalized_shape, eps, gamma, beta)


def forward_affine_mixed_dtypes(
    input: Tensor,  # noqa: A002 - a name to keep
    normalized_shape: Shape,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
) -> list[Tensor]:
    """The same, with a norm of the dtype of ``gamma``."""
    return _mixed(_LAYER, input, normalized_shape, eps, gamma, beta)


def backward(
    dout: Tensor,
    mean: Tensor | None,
    invvar: Tensor,
    input: Tensor,  # noqa: A002 - a name to keep
    normalized_shape: Shape,
    eps: float,
    memory_efficient: bool = False,
) -> Tensor:
    """The gradient for ``input`` of a norm without parameters."""
    return _backward(_LAYER, dout, invvar, input, normalized_shape, eps, memory_efficient)[0]


def backward_affine(
    dout: Tensor,
    mean: Tensor | None,
    invvar: Tensor,
    input: Tensor,  # noqa: A002 - a name to keep
    normalized_shape: Shape,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    memory_efficient: bool = False,
) -> list[Tensor]:
    """The gradients for ``input``, ``gamma`` and ``beta``."""
    return _backward(_LAYER, dout, invvar, input, normalized_shape, eps, memory_efficient, gamma, beta)


def rms_forward(input: Tensor, normalized_shape: Shape, eps: float) -> list[Tensor]:  # noqa: A002
    """The RMS norm without a weight, and the inverse root of the mean square of each row."""
    return _forward(_RMS, input, normalized_shape, eps)


def rms_forward_affine(input: Tensor, normalized_shape: Shape, gamma: Tensor, eps: float) -> list[Tensor]:  # noqa: A002
    """The RMS norm, and the inverse root of the mean square of each row."""
    return _forward(_RMS, input, normalized_shape, eps, gamma)


def rms_forward_affine_mixed_dtypes(
    input: Tensor,  # noqa: A002 - a name to keep
    normalized_shape: Shape,
    gamma: Tensor,
    eps: float,
) -> list[Tensor]:
    """The same, with a norm of the dtype of ``gamma``."""
    return _mixed(_RMS, input, normalized_shape, eps, gamma)


def rms_backward(
    dout: Tensor,
    invvar: Tensor,
    input: Tensor,  # noqa: A002 - a name to keep
    normalized_shape: Shape,
    eps: float,
    memory_efficient: bool = False,
) -> Tensor:
    """The gradient for ``input`` of a norm without a weight."""
    return _backward(_RMS, dout, invvar, input, normalized_shape, eps, memory_efficient)[0]


def rms_backward_affine(
    dout: Tensor,
    invvar: Tensor,
    input: Tensor,  # noqa: A002 - a name to keep
    normalized_shape: Shape,
    gamma: Tensor,
    eps: float,
    memory_efficient: bool = False,
) -> list[Tensor]:
    """The gradients for ``input`` and ``gamma``."""
    return _backward(_RMS, dout, invvar, input, normalized_shape, eps, memory_efficient, gamma)


def _rows(x: Tensor, shape: Shape, gamma: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
    """``x`` with the normalized dimensions flattened into one."""
    wanted = tuple(shape)
    given = {name: one for name, one in (("gamma", gamma), ("beta", beta)) if one is not None}
    if not wanted or tuple(x.shape[-len(wanted) :]) != wanted or any(one.shape != wanted for one in given.values()):
        found = ", ".join(f"{name} {tuple(one.shape)}" for name, one in {"input": x, **given}.items())
        raise ValueError(
            f"normalized_shape is {wanted}; needed the last dimensions of input and all of the parameters: {found}"
        )
    return x.reshape(-1, math.prod(wanted))


def _alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in one dtype that holds the values of all."""
    dtype = functools.reduce(torch.promote_types, {tensor.dtype for tensor in tensors})
    return tuple(tensor.to(dtype) for tensor in tensors)


def _for_backward(grad: Tensor, x: Tensor, *weight: Tensor) -> tuple[Tensor, ...]:
    """The same, except for a float32 weight of narrower rows: the kernels take it as it is."""
    fits = grad.dtype == x.dtype and all(one.dtype in (x.dtype, torch.float32) for one in weight)
    return (grad, x, *weight) if fits else _alike(grad, x, *weight)


def _restored(y: Tensor, invvar: Tensor, eps: float, gamma: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
    """The rows, less their mean, that have the norm ``y``; float32."""
    x = y.float()
    if beta is not None:
        x = x - beta.reshape(-1).float()
    if gamma is not None:
        weight = gamma.reshape(-1).float()
        x = x / torch.where(weight < 0, weight.clamp(max=-eps), weight.clamp(min=eps))
    return x / invvar.reshape(-1, 1).float()
