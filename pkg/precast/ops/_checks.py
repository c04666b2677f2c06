"""The checks that need only metadata, made by the fake kernels and before the reference, in the kernels' words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from precast.ops import _reference

FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16)

# Raises RuntimeError with the text; under a trace with unknown sizes it becomes a check of the graph.
_require: Callable[[object, Callable[[], str]], None] = torch._check


def norm_inputs(op: str, x: Tensor, weight: Tensor, eps: float, casting: int, **like_x: Tensor) -> None:
    """Raises unless ``weight`` fits ``x``'s last dimension, and each tensor of ``like_x`` has ``x``'s shape."""
    _rows(op, x)
    _require(casting in _reference.CASTINGS.values(), lambda: f"{op}: casting is {casting}; needed 0, 1 or 2")
    _row_tensors(op, x, eps, {"weight": weight}, like_x)


def layer_norm_inputs(
    op: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, **like_x: Tensor
) -> None:
    """Raises unless ``weight`` and ``bias``, where given, fit ``x``'s last dimension, and ``like_x`` is as ``x``."""
    _rows(op, x)
    given = {"weight": weight, "bias": bias}
    _row_tensors(op, x, eps, {name: tensor for name, tensor in given.items() if tensor is not None}, like_x)


def _rows(op: str, x: Tensor) -> None:
    _require(
        x.dtype in FLOAT_TYPES,
        lambda: f"{op}: x is {_dtype(x)}; needed float32, float16 or bfloat16",
    )
    _require(x.dim() >= 1, lambda: f"{op}: x has shape (); needed at least one dimension")


def _row_tensors(op: str, x: Tensor, eps: float, columns: Mapping[str, Tensor], like_x: Mapping[str, Tensor]) -> None:
    """Checks tensors of one element for each column, and tensors of ``x``'s shape."""
    _require(eps >= 0, lambda: f"{op}: eps is {eps:g}; needed a number that is not negative")
    for name, other in {**columns, **like_x}.items():
        _same_kind(op, name, other, x)
    for name, other in columns.items():
        _column_vector(op, name, other, x)
    for name, other in like_x.items():
        _same_shape(op, name, other, "x", x)


def gated_inputs(op: str, x: Tensor, kind: int, grad: Tensor | None = None) -> None:
    """Raises unless ``x`` has two halves; ``grad``, if given, must have the shape of one of them."""
    _require(
        x.dtype in FLOAT_TYPES,
        lambda: f"{op}: x is {_dtype(x)}; needed float32, float16 or bfloat16",
    )
    _require(x.dim() >= 1, lambda: f"{op}: x has shape (); needed at least one dimension")
    _require(
        x.shape[-1] % 2 == 0,
        lambda: f"{op}: x has shape {tuple(x.shape)}; needed an even last dimension, which holds two halves",
    )
    _require(kind in _reference.GATED_KINDS, lambda: f"{op}: kind is {kind}; needed 0, 1, 2 or 3")
    if grad is None:
        return
    _same_kind(op, "grad", grad, x)
    _require(
        grad.shape == (*x.shape[:-1], x.shape[-1] // 2),
        lambda: (
            f"{op}: grad has shape {tuple(grad.shape)} and x has shape {tuple(x.shape)}; needed the shape of x with "
            "half its last dimension"
        ),
    )


def _column_vector(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    _require(
        tensor.dim() == 1 and tensor.shape[0] == x.shape[-1],
        lambda: f"{op}: {name} has shape {tuple(tensor.shape)}; needed ({x.shape[-1]},), the last dimension of x",
    )


def adam_inputs(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    copies: Sequence[Tensor],
) -> None:
    """Raises unless the lists are of one length and the tensors of one index can be updated together."""
    states = {"exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    _update("adam_", params, {"grads": grads, **states, **({"copies": copies} if copies else {})})
    _states("adam_", params, states)
    _copies("adam_", copies)


def optimize_inputs(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    third: Sequence[Tensor],
    steps: Sequence[Tensor],
    copies: Sequence[Tensor],
    plan: Tensor,
    numbers: Tensor,
    grad_scale: float,
    rule: int,
) -> None:
    """Raises unless the tensors of one index, those that have elements, can be updated together."""
    op = "optimize_"
    _require(rule in range(4), lambda: f"{op}: rule is {rule}; needed 0, 1, 2 or 3")
    states = {"first": first, "second": second, "third": third}
    given = {name: tensors for name, tensors in {**states, "copies": copies}.items() if tensors}
    lists = {
        name: [
            like if tensor.numel() == 0 and name != "grads" else tensor
            for tensor, like in zip(tensors, params, strict=False)
        ]
        for name, tensors in given.items()
    }
    _update(op, params, {"grads": grads, **lists})
    _states(op, params, {name: lists[name] for name in states if name in lists})
    _copies(op, copies)


def _update(op: str, params: Sequence[Tensor], others: Mapping[str, Sequence[Tensor]]) -> None:
    for name, tensors in others.items():
        message = f"{op}: {len(params)} params, but {len(tensors)} {name}; one for each param is needed"
        _require(len(tensors) == len(params), lambda: message)  # noqa: B023 - called at once or never
    for index, param in enumerate(params):
        for name, tensors in {"params": params, **others}.items():
            _updated(op, f"{name}[{index}]", tensors[index], f"params[{index}]", param, params[0])


def _states(op: str, params: Sequence[Tensor], states: Mapping[str, Sequence[Tensor]]) -> None:
    """All float32, or all of the parameter's dtype."""
    names = list(states)
    for index, param in enumerate(params):
        for other in (*names[1:], *names[-1:]):
            m, v = states[names[0]][index], states[other][index]
            message = (
                f"{op}: {names[0]}[{index}] is {_dtype(m)} and {other}[{index}] is {_dtype(v)} "
                f"with a {_dtype(param)} param; all must be float32, or all of the param's dtype"
            )
            _require(m.dtype == v.dtype and m.dtype in (torch.float32, param.dtype), lambda: message)  # noqa: B023


def _copies(op: str, copies: Sequence[Tensor]) -> None:
    for index, copy in enumerate(copies):
        message = f"{op}: copies[{index}] is float32; float16 or bfloat16 is needed"
        _require(copy.dtype != torch.float32 or copy.numel() == 0, lambda: message)  # noqa: B023


def _updated(op: str, name: str, tensor: Tensor, param_name: str, param: Tensor, first: Tensor) -> None:
    # Tensors without data pass as well, as long as all of them are.
    _require(
        tensor.device.type == first.device.type and tensor.device.type in ("cpu", "meta"),
        lambda: f"{op}: {name} is on {tensor.device}; all tensors must be on cpu",
    )
    _require(
        tensor.dtype in FLOAT_TYPES,
        lambda: f"{op}: {name} is {_dtype(tensor)}; float32, float16 or bfloat16 is needed",
    )
    _require(
        tensor.numel() == param.numel(),
        lambda: (
            f"{op}: {name} has shape {tuple(tensor.shape)}, {param_name} has {tuple(param.shape)}; "
            "as many elements are needed"
        ),
    )


def list_inputs(op: str, lists: Mapping[str, Sequence[Tensor]]) -> None:
    """Raises unless the lists are of one length, and the tensors of one index of one size, on one device."""
    (first_name, first), *_ = lists.items()
    _require(len(first) > 0, lambda: f"{op}: the list of {first_name} is empty; one tensor or more is needed")
    for name, tensors in lists.items():
        message = f"{op}: {len(first)} {first_name}, but {len(tensors)} {name}; one for each is needed"
        _require(len(tensors) == len(first), lambda: message)  # noqa: B023 - called at once or never
        for index, tensor in enumerate(tensors):
            label = f"{op}: {name}[{index}]"
            wrong = {
                f"is {_dtype(tensor)}; float32, float16 or bfloat16 is needed": tensor.dtype not in FLOAT_TYPES,
                f"is on {tensor.device} and {first_name}[0] on {first[0].device}; all tensors must be on one device": (
                    tensor.device != first[0].device
                ),
                f"has shape {tuple(tensor.shape)}, {first_name}[{index}] has {tuple(first[index].shape)}; as many "
                "elements are needed": tensor.numel() != first[index].numel(),
            }
            for text, is_wrong in wrong.items():
                _require(not is_wrong, lambda: f"{label} {text}")  # noqa: B023


def _same_kind(op: str, name: str, other: Tensor, x: Tensor, called: str = "x") -> None:
    _require(
        other.dtype == x.dtype,
        lambda: f"{op}: {name} is {_dtype(other)} and {called} is {_dtype(x)}; needed one dtype",
    )
    _same_device(op, name, other, x, called)


def _same_device(op: str, name: str, other: Tensor, x: Tensor, called: str = "x") -> None:
    _require(
        other.device == x.device,
        lambda: f"{op}: {name} is on {other.device} and {called} on {x.device}; needed one device",
    )


def _same_shape(op: str, name: str, tensor: Tensor, wanted_name: str, wanted: Tensor) -> None:
    _require(
        tensor.shape == wanted.shape,
        lambda: f"{op}: {name} has shape {tuple(tensor.shape)}; needed {tuple(wanted.shape)}, as {wanted_name}",
    )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
