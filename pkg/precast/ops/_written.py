"""Checks all tensors before plain torch reads or writes them, because torch checks one tensor after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import means_its_memory
from precast._dispatch.in_place import refuse_inference, written_arguments
from precast.ops._checks import require


def checked(op: torch._ops.OpOverload, reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference of an op behind the op's own checks, so that a refused call writes nothing."""
    name, written = op._opname, written_arguments(op)
    # Parameters and states. Tensors of other ops may lie between each other, and sums may replace their terms.
    several = sum(str(op._schema.arguments[i].type) == "List[Tensor]" for i in written) > 1

    def call(*args: Any) -> Any:
        namespace.CHECKS[name](*args)
        named = {i: _tensors(op._schema.arguments[i].name, value) for i, value in enumerate(args)}
        targets = {label: tensor for i in written for label, tensor in named.get(i, {}).items()}
        read = {label: tensor for i, group in named.items() if i not in written for label, tensor in group.items()}
        refuse_inference(name, targets.values())
        for label, tensor in {**targets, **read}.items():
            check_memory(name, label, tensor, written=label in targets)
        if several:
            check_apart(name, filter(_has_memory, targets.values()), filter(_has_memory, read.values()))
        return reference(*args)

    return call


def _tensors(name: str, value: Any) -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, (list, tuple)):
        return {f"{name}[{i}]": tensor for i, tensor in enumerate(value) if isinstance(tensor, Tensor)}
    return {}


def check_memory(op: str, name: str, tensor: Tensor, *, written: bool) -> None:
    """Raise unless the storage has every element, and one place for each if the tensor is written."""
    there = tensor.untyped_storage().nbytes()
    if is_short(tensor):
        raise RuntimeError(
            f"{op}: {name} has shape {tuple(tensor.shape)}, and a storage of only {there} bytes; nothing was written"
        )
    if written:
        refuse_expanded(op, name, tensor)


def check_readable(op: str, **tensors: Tensor | None) -> None:
    """Raise unless plain torch can read each tensor; it trusts that a storage was not freed."""
    for name, tensor in tensors.items():
        if tensor is None or torch.compiler.is_compiling():
            continue
        require(
            tensor.layout == torch.strided,
            lambda: f"{op}: {name} has the layout {tensor.layout}; needed torch.strided",  # noqa: B023 - called at once
        )
        if tensor.device.type != "meta" and means_its_memory(tensor):
            check_memory(op, name, tensor, written=False)


def is_short(tensor: Tensor) -> bool:
    """Whether the storage ends before the last element."""
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() > 0 and (last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes()


def refuse_expanded(op: str, name: str, tensor: Tensor) -> None:
    """Raise if a dimension of a tensor that is written has one place for many elements."""
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise RuntimeError(
            f"{op}: {name} of shape {tuple(tensor.shape)} has one place for many elements (strides "
            f"{tensor.stride()}) and cannot be updated; nothing was written"
        )


def check_apart(op: str, written: Iterable[Tensor], read: Iterable[Tensor], noun: str = "a gradient") -> None:
    """Raise if tensors share memory: they would be updated twice or concurrently. Only those read may share memory."""
    targets = list(written)
    ours, theirs = sorted(map(range_of, targets)), sorted(map(range_of, read))
    if overlap(targets):
        raise RuntimeError(f"{op}: two of the tensors that are written share memory; each must have its own")
    both = sorted([*((*r, True) for r in ours), *((*r, False) for r in theirs)])
    end = {True: 0, False: 0}  # the greatest end address of written tensors, and of read ones
    for first, last, is_ours in both:
        if first < last and first < end[not is_ours]:
            raise RuntimeError(f"{op}: {noun} shares memory with a tensor that is written; it must have its own")
        end[is_ours] = max(end[is_ours], last)


def overlap(tensors: Iterable[Tensor]) -> bool:
    """Whether two of the tensors share memory."""
    return any(after[0] < before[1] for before, after in pairwise(sorted(map(range_of, tensors))))


def _has_memory(tensor: Tensor) -> bool:
    return tensor.device.type != "meta"


def range_of(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a contiguous tensor: the first, and the one after the last."""
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
