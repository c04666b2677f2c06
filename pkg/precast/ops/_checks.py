"""The checks that need only metadata, made by the fake kernels and before the reference, in the kernels' words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from precast.ops import _reference

FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16)

# Raises RuntimeError with the text; under a trace with unknown sizes it becomes a check of the graph.
_require: Callable[[object, Callable[[], str]], None] = torch._check


def norm_inputs(op: str, x: Tensor, weight: Tensor, casting: int, **like_x: Tensor) -> None:
    """Raises unless ``weight`` fits ``x``'s last dimension, and each tensor of ``like_x`` has ``x``'s shape."""
    _require(
        x.dtype in FLOAT_TYPES,
        lambda: f"{op}: x is {_dtype(x)}; needed float32, float16 or bfloat16",
    )
    _require(x.dim() >= 1, lambda: f"{op}: x has shape (); needed at least one dimension")
    _require(casting in _reference.CASTINGS.values(), lambda: f"{op}: casting is {casting}; needed 0, 1 or 2")
    for name, other in {"weight": weight, **like_x}.items():
        _same_kind(op, name, other, x)
    _require(
        weight.dim() == 1 and weight.shape[0] == x.shape[-1],
        lambda: f"{op}: weight has shape {tuple(weight.shape)}; needed ({x.shape[-1]},), the last dimension of x",
    )
    for name, other in like_x.items():
        _same_shape(op, name, other, "x", x)


def adam_inputs(
    op: str,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    copies: Sequence[Tensor],
) -> None:
    """Raises unless the lists are of one length and entries of one index are dense CPU tensors of one shape."""
    others = {"grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    if copies:
        others["copies"] = copies
    for name, tensors in others.items():
        _require(
            len(tensors) == len(params),
            lambda: f"{op}: {name} has {len(tensors)} tensors; needed {len(params)}, one per parameter",  # noqa: B023
        )
    for index, param in enumerate(params):
        for name, tensors in {"params": params, **others}.items():
            _adam_tensor(op, f"{name}[{index}]", tensors[index], param, f"params[{index}]")


def _adam_tensor(op: str, name: str, tensor: Tensor, param: Tensor, param_name: str) -> None:
    _require(
        tensor.layout == torch.strided,
        lambda: f"{op}: {name} is {str(tensor.layout).removeprefix('torch.')}; needed a dense tensor",
    )
    _require(
        tensor.dtype in FLOAT_TYPES,
        lambda: f"{op}: {name} is {_dtype(tensor)}; needed float32, float16 or bfloat16",
    )
    _require(
        tensor.device.type in ("cpu", "meta"),
        lambda: f"{op}: {name} is on {tensor.device}; needed the CPU",
    )
    _same_shape(op, name, tensor, param_name, param)


def _same_kind(op: str, name: str, other: Tensor, x: Tensor) -> None:
    _require(
        other.dtype == x.dtype,
        lambda: f"{op}: {name} is {_dtype(other)} and x is {_dtype(x)}; needed one dtype",
    )
    _require(
        other.device == x.device,
        lambda: f"{op}: {name} is on {other.device} and x on {x.device}; needed one device",
    )


def _same_shape(op: str, name: str, tensor: Tensor, wanted_name: str, wanted: Tensor) -> None:
    _require(
        tensor.shape == wanted.shape,
        lambda: f"{op}: {name} has shape {tuple(tensor.shape)}; needed {tuple(wanted.shape)}, as {wanted_name}",
    )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
