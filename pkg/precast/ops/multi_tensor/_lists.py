"""Checks of the ops over lists, by metadata alone: the op's own, and those of plain torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from precast.ops import _checks
from precast.ops._updates import LAMB_APPLY, RULES


def check_lists(op: str, lists: Mapping[str, Sequence[Tensor]]) -> None:
    """Raise unless the lists have the same length and the tensors at each index the same size, all on one device."""
    (first_name, first), *_ = lists.items()
    _checks.require(len(first) > 0, lambda: f"{op}: the list of {first_name} is empty; one tensor or more is needed")
    for name, tensors in lists.items():
        message = f"{op}: {len(first)} {first_name}, but {len(tensors)} {name}; one for each is needed"
        _checks.require(len(tensors) == len(first), lambda: message)  # noqa: B023 - called at once or never
        for index, tensor in enumerate(tensors):
            label = f"{op}: {name}[{index}]"
            wrong = {
                f"is {_checks.dtype_name(tensor)}; float32, float16 or bfloat16 is needed": tensor.dtype
                not in _checks.FLOAT_TYPES,
                f"is on {tensor.device} and {first_name}[0] on {first[0].device}; all tensors must be on one device": (
                    tensor.device != first[0].device
                ),
                f"has shape {tuple(tensor.shape)}, {first_name}[{index}] has {tuple(first[index].shape)}; as many "
                "elements are needed": tensor.numel() != first[index].numel(),
            }
            for text, is_wrong in wrong.items():
                _checks.require(not is_wrong, lambda: f"{label} {text}")  # noqa: B023


def check_given(op: str, lists: Mapping[str, Sequence[Tensor]]) -> None:
    """``check_lists`` for the lists of a step, of which those of states may be empty; the states have one dtype."""
    check_lists(op, {name: tensors for name, tensors in lists.items() if tensors or name in ("params", "grads")})
    for name in ("seconds", "thirds"):
        for index, (tensor, first) in enumerate(zip(lists[name], lists["firsts"], strict=False)):
            if tensor.dtype != first.dtype:
                raise RuntimeError(f"{op}: {name}[{index}] and firsts[{index}] are of two dtypes; one is needed")


def check_members(op: str, states: Sequence[Sequence[Tensor]], kind: int, *, apply: bool) -> None:
    """Raise unless there is an update of this kind, and it has the states that it needs; ``apply``: LAMB's second."""
    if kind not in RULES or (kind == LAMB_APPLY and not apply):
        raise RuntimeError(f"{op}: there is no update of kind {kind}")
    if not all(states[: RULES[kind].least]):
        raise RuntimeError(f"{op}: an update of kind {kind} needs states that were not given")


def check_scalar(op: str, name: str, tensor: Tensor | None, like: Tensor) -> None:
    """Check a number on the device that a program reads or writes."""
    if tensor is None:
        return
    if tensor.dtype != torch.float32 or tensor.numel() != 1:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise RuntimeError(f"{op}: {name} is {dtype} of shape {tuple(tensor.shape)}; one float32 is needed")
    if tensor.device != like.device:
        raise RuntimeError(f"{op}: {name} is on {tensor.device} and the tensors on {like.device}; one device is needed")


def fits(tensor: Tensor, head: Tensor) -> bool:
    """Whether two tensors have the same order of elements in memory."""
    if head.is_contiguous():
        return tensor.is_contiguous()
    strides = zip(tensor.shape, tensor.stride(), head.stride(), strict=False)
    return tensor.shape == head.shape and all(a == b for size, a, b in strides if size > 1)


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has no gap and no overlap, in any dimension order: only then empty_like keeps its strides."""
    return tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def check_layout(op: str, lists: Mapping[str, Sequence[Tensor]]) -> None:
    (head_name, heads), *_ = lists.items()
    for name, tensors in lists.items():
        for index, (tensor, head) in enumerate(zip(tensors, heads, strict=True)):
            if _is_dense(head) and fits(tensor, head):
                continue
            raise RuntimeError(
                f"{op}: {name}[{index}] (shape {tuple(tensor.shape)}) has gaps or overlaps in memory, or another "
                f"memory layout than {head_name}[{index}]; contiguous tensors are needed, or dense ones with "
                "the same sizes and strides"
            )
