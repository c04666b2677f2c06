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
from typing import TYPE_CHECKING, Any

from precast.compat.modules import Find, Members

if TYPE_CHECKING:
    from torch import Tensor

_CAST_ONCE = 0  # the ops' casting mode with a single rounding at the end


def members(find: Find) -> Members:
    """The functions, each by its name."""
    return {**_layer_norm(find), **_layer_norm_backward(find), **_rms_norm(find), **_rms_norm_backward(find)}


def _layer_norm(find: Find) -> Members:
    def norm(x: Tensor, shape: Sequence[int], gamma: Tensor | None, beta: Tensor | None, eps: float) -> list[Tensor]:
        import torch

        rows = _rows(x, shape, gamma, beta)
        with torch.no_grad():
            y = find("layer_norm")(rows, _flat(gamma), _flat(beta), eps)
            variance, mean = torch.var_mean(rows.float(), -1, correction=0)
        return [y.reshape(x.shape), mean, (variance + eps).rsqrt()]

    def forward(input: Tensor, normalized_shape: Sequence[int], eps: float) -> list[Tensor]:  # noqa: A002 - a name to keep
        """The norm without parameters, and for each row the mean and the inverse standard deviation."""
        return norm(input, normalized_shape, None, None, eps)

    def forward_affine(
        input: Tensor,  # noqa: A002 - a name to keep
        normalized_shape: Sequence[int],
        gamma: Tensor,
        beta: Tensor,
        eps: float,
    ) -> list[Tensor]:
        """The norm, and for each row the mean and the inverse standard deviation."""
        return norm(input, normalized_shape, gamma, beta, eps)

    def forward_affine_mixed_dtypes(
        input: Tensor,  # noqa: A002 - a name to keep
        normalized_shape: Sequence[int],
        gamma: Tensor,
        beta: Tensor,
        eps: float,
    ) -> list[Tensor]:
        """The same, with a norm of the dtype of ``gamma``."""
        x, weight, bias = _alike(input, gamma, beta)
        y, *statistics = norm(x, normalized_shape, weight, bias, eps)
        return [y.to(gamma.dtype), *statistics]

    return {
        "forward": forward,
        "forward_affine": forward_affine,
        "forward_affine_mixed_dtypes": forward_affine_mixed_dtypes,
    }


def _layer_norm_backward(find: Find) -> Members:
    def backward(
        dout: Tensor,
        mean: Tensor | None,
        invvar: Tensor,
        input: Tensor,  # noqa: A002 - a name to keep
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        """The gradient for ``input`` of a norm without parameters."""
        import torch

        rows = _rows(input, normalized_shape)
        with torch.no_grad():
            grad, x = _alike(dout.reshape(rows.shape), _restored(rows, invvar, eps) if memory_efficient else rows)
            found: Tensor = find("layer_norm_backward")(grad, x, None, eps, False, False)[0]
        return found.reshape(input.shape).to(input.dtype)

    def backward_affine(
        dout: Tensor,
        mean: Tensor | None,
        invvar: Tensor,
        input: Tensor,  # noqa: A002 - a name to keep
        normalized_shape: Sequence[int],
        gamma: Tensor,
        beta: Tensor,
        eps: float,
        memory_efficient: bool = False,
    ) -> list[Tensor]:
        """The gradients for ``input``, ``gamma`` and ``beta``."""
        import torch

        rows = _rows(input, normalized_shape, gamma, beta)
        with torch.no_grad():
            x = _restored(rows, invvar, eps, gamma, beta) if memory_efficient else rows
            grad, x, weight = _for_backward(dout.reshape(rows.shape), x, gamma.reshape(-1))
            grads = find("layer_norm_backward")(grad, x, weight, eps, True, True)
        return _shaped(grads, (input, gamma, beta))

    return {"backward": backward, "backward_affine": backward_affine}


def _rms_norm(find: Find) -> Members:
    def norm(x: Tensor, shape: Sequence[int], gamma: Tensor | None, eps: float) -> list[Tensor]:
        import torch

        rows = _rows(x, shape, gamma)
        with torch.no_grad():
            weight = rows.new_ones(rows.shape[1]) if gamma is None else gamma.reshape(-1)
            y = find("rms_norm")(rows, weight, eps, _CAST_ONCE)
            inverse = (rows.float().square().mean(-1) + eps).rsqrt()
        return [y.reshape(x.shape), inverse]

    def rms_forward(input: Tensor, normalized_shape: Sequence[int], eps: float) -> list[Tensor]:  # noqa: A002
        """The RMS norm without a weight, and the inverse root of the mean square of each row."""
        return norm(input, normalized_shape, None, eps)

    def rms_forward_affine(
        input: Tensor,  # noqa: A002 - a name to keep
        normalized_shape: Sequence[int],
        gamma: Tensor,
        eps: float,
    ) -> list[Tensor]:
        """The RMS norm, and the inverse root of the mean square of each row."""
        return norm(input, normalized_shape, gamma, eps)

    def rms_forward_affine_mixed_dtypes(
        input: Tensor,  # noqa: A002 - a name to keep
        normalized_shape: Sequence[int],
        gamma: Tensor,
        eps: float,
    ) -> list[Tensor]:
        """The same, with a norm of the dtype of ``gamma``."""
        x, weight = _alike(input, gamma)
        y, inverse = norm(x, normalized_shape, weight, eps)
        return [y.to(gamma.dtype), inverse]

    return {
        "rms_forward": rms_forward,
        "rms_forward_affine": rms_forward_affine,
        "rms_forward_affine_mixed_dtypes": rms_forward_affine_mixed_dtypes,
    }


def _rms_norm_backward(find: Find) -> Members:
    def rms_backward(
        dout: Tensor,
        invvar: Tensor,
        input: Tensor,  # noqa: A002 - a name to keep
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        """The gradient for ``input`` of a norm without a weight."""
        import torch

        rows = _rows(input, normalized_shape)
        with torch.no_grad():
            grad, x = _alike(dout.reshape(rows.shape), _restored(rows, invvar, eps) if memory_efficient else rows)
            found: Tensor = find("rms_norm_backward")(grad, x, x.new_ones(x.shape[1]), eps, _CAST_ONCE)[0]
        return found.reshape(input.shape).to(input.dtype)

    def rms_backward_affine(
        dout: Tensor,
        invvar: Tensor,
        input: Tensor,  # noqa: A002 - a name to keep
        normalized_shape: Sequence[int],
        gamma: Tensor,
        eps: float,
        memory_efficient: bool = False,
    ) -> list[Tensor]:
        """The gradients for ``input`` and ``gamma``."""
        import torch

        rows = _rows(input, normalized_shape, gamma)
        with torch.no_grad():
            x = _restored(rows, invvar, eps, gamma) if memory_efficient else rows
            grad, x, weight = _for_backward(dout.reshape(rows.shape), x, gamma.reshape(-1))
            grads = find("rms_norm_backward")(grad, x, weight, eps, _CAST_ONCE)
        return _shaped(grads, (input, gamma))

    return {"rms_backward": rms_backward, "rms_backward_affine": rms_backward_affine}


def _rows(x: Tensor, shape: Sequence[int], gamma: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
    """``x`` with the normalized dimensions flattened into one."""
    wanted = tuple(shape)
    given = {name: one for name, one in (("gamma", gamma), ("beta", beta)) if one is not None}
    if not wanted or tuple(x.shape[-len(wanted) :]) != wanted or any(one.shape != wanted for one in given.values()):
        found = ", ".join(f"{name} {tuple(one.shape)}" for name, one in {"input": x, **given}.items())
        raise ValueError(
            f"normalized_shape is {wanted}; needed the last dimensions of input and all of the parameters: {found}"
        )
    return x.reshape(-1, math.prod(wanted))


def _flat(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.reshape(-1)


def _alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in one dtype that holds the values of all."""
    import torch

    dtype = functools.reduce(torch.promote_types, {tensor.dtype for tensor in tensors})
    return tuple(tensor.to(dtype) for tensor in tensors)


def _for_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """The same, except for a float32 weight of narrower rows: the kernels take it as it is."""
    import torch

    fits = grad.dtype == x.dtype and weight.dtype in (x.dtype, torch.float32)
    return (grad, x, weight) if fits else _alike(grad, x, weight)


def _restored(y: Tensor, invvar: Tensor, eps: float, gamma: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
    """The rows, less their mean, that have the norm ``y``; float32."""
    import torch

    x = y.float()
    if beta is not None:
        x = x - beta.reshape(-1).float()
    if gamma is not None:
        weight = gamma.reshape(-1).float()
        x = x / torch.where(weight < 0, weight.clamp(max=-eps), weight.clamp(min=eps))
    return x / invvar.reshape(-1, 1).float()


def _shaped(grads: Sequence[Any], like: Sequence[Tensor]) -> list[Tensor]:
    return [grad.reshape(one.shape).to(one.dtype) for grad, one in zip(grads, like, strict=True)]
