"""Sorts the parameters of a step into launches and checks them, without a change to a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from precast._dispatch.formulas import are_bare, means_its_memory
from precast._dispatch.in_place import refuse_inference
from precast.ops._shards import is_dtensor, local_like, local_of
from precast.ops._written import is_short
from precast.ops.multi_tensor import on_gpu
from precast.optim._rules import State

FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16)
NEEDED_TYPES = "float32, float16 or bfloat16; torch.optim has float64"


class Signature(NamedTuple):
    """The properties that all parameters of a launch share."""

    flags: int
    states: tuple[State | None, ...]
    masters: bool


@dataclass(slots=True)
class Work:
    """The parameters of one launch, and their gradients as local tensors in the parameters' layout."""

    masters: bool
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    listed: bool = False


def gather(
    name: str,
    param_groups: list[dict[str, Any]],
    signature_of: Callable[[dict[str, Any]], Signature],
    moved: MutableMapping[Tensor, Tensor],
    place: Callable[[int], int],
) -> tuple[dict[Signature, Work], list[Tensor]]:
    """The parameters with a gradient, by signature, and the others. RuntimeError if no kernel accepts a tensor.

    ``place`` gives the index of a parameter for errors.
    """
    works: dict[Signature, Work] = {}
    idle: list[Tensor] = []
    first: Tensor | None = None
    slot = -1
    for number, group in enumerate(param_groups):
        shared = signature_of(group)
        for param in group["params"]:
            slot += 1
            grad = param.grad
            if grad is None:
                idle.append(param)
                continue
            first = param if first is None else first
            _check(name, slot, param, grad, first, place)
            signature = shared._replace(masters=shared.masters and param.dtype != torch.float32)
            work = works.setdefault(signature, Work(signature.masters))
            local, in_layout = local_grad(param, grad, moved)
            # Inference tensors have no version counter.
            work.listed = work.listed or not in_layout or _is_inference(name, param)
            work.params.append(param)
            work.grads.append(local)
            work.groups.append(number)
            work.slots.append(slot)
    return works, idle


def local_grad(param: Tensor, grad: Tensor, moved: MutableMapping[Tensor, Tensor]) -> tuple[Tensor, bool]:
    """The gradient in the form that the op accepts, and whether the kernel may read ``param.grad`` directly."""
    if is_dtensor(param):
        return local_grad(local_of(param), local_like(grad, param, "its gradient", moved), moved)[0], False
    if (grad.is_contiguous() and param.is_contiguous()) or grad.stride() == param.stride():
        if are_bare((grad,)):
            return grad, True
        # For a zero tensor, torch would pass the kernel one zero, expanded (strides of 0).
        return torch.zeros_like(param, dtype=grad.dtype) if grad._is_zerotensor() else grad, False
    if are_bare((grad,)) or grad.is_neg():
        _check_storage(grad)
    return torch.empty_like(param, dtype=grad.dtype).copy_(grad), False


def _check_storage(grad: Tensor) -> None:
    """Raise if the storage is shorter than the tensor, because torch's copy would read past its end."""
    if is_short(grad):
        there = grad.untyped_storage().nbytes()
        raise RuntimeError(
            f"a gradient has shape {tuple(grad.shape)}, and a storage of only {there} bytes; nothing was updated"
        )


def check_memory(name: str, what: str, tensors: Iterable[Tensor]) -> None:
    """Raise an error for tensors that the dispatcher replaces: a plan would keep and update the replacements."""
    for index, tensor in enumerate(tensors):
        if not means_its_memory(tensor):
            raise RuntimeError(
                f"{name}.step: {what} {index} has no memory of its own; nothing was updated\n"
                f"found: a {type(tensor).__name__}{' with the negative bit' * tensor.is_neg()}; needed: a plain tensor "
                "(as tensor.resolve_neg() makes it), or a DTensor"
            )


def local_grads(params: Iterable[Tensor], moved: MutableMapping[Tensor, Tensor]) -> list[Tensor] | None:
    """The local gradients; None if a gradient is missing or sparse."""
    grads = []
    with torch.no_grad():
        for param in params:
            if param.grad is None or param.grad.layout is not torch.strided or not _may_write(param):
                return None
            grads.append(local_grad(param, param.grad, moved)[0])
    return grads


def _is_inference(name: str, param: Tensor) -> bool:
    """Whether a parameter is an inference tensor. RuntimeError outside inference mode, which torch asks for."""
    refuse_inference(f"{name}.step", (param,))
    return param.is_inference()


def _may_write(param: Tensor) -> bool:
    return not param.is_inference() or torch.is_inference_mode_enabled()


def capturing() -> bool:
    """Whether a CUDA graph is being captured. Without a driver, a torch built for CUDA raises if it is asked."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _check(name: str, index: int, param: Tensor, grad: Tensor, first: Tensor, place: Callable[[int], int]) -> None:
    """Raise for the first problem of one parameter or its gradient."""
    for what, tensor in {"it": param, "its gradient": grad}.items():
        usable = tensor.layout is torch.strided and on_gpu(tensor) and tensor.dtype in FLOAT_TYPES
        if usable and tensor.device == first.device and tensor.shape == param.shape:
            continue
        dtype, layout = (str(x).removeprefix("torch.") for x in (tensor.dtype, tensor.layout))
        wrong = {
            f"has layout {layout}; needed a dense tensor": tensor.layout is not torch.strided,
            f"is on {tensor.device}; needed a GPU; precast.optim.CPUAdam is for parameters in CPU memory": (
                not on_gpu(tensor)
            ),
            f"is {dtype}; needed {NEEDED_TYPES}": tensor.dtype not in FLOAT_TYPES,
            f"is on {tensor.device}, and the first parameter on {first.device}; needed one GPU for one optimizer": (
                tensor.device != first.device
            ),
            f"has shape {tuple(tensor.shape)}; needed {tuple(param.shape)}": tensor.shape != param.shape,
        }
        reason = next(text for text, is_wrong in wrong.items() if is_wrong)
        raise RuntimeError(f"{name}.step: parameter {place(index)}: {what} {reason}; nothing was updated")
