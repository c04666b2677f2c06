"""Keeps the work of one step of a CPU optimizer as a plan for the next step.

With a thousand small tensors, inspecting them takes longer than updating them. So the kernel knows the lists of a plan
by a number, and a later step passes only that number, and gradients if they are not the parameters' own
``.grad``. At each step, the kernel checks the address, dtype and storage of every tensor. The optimizer itself checks
that it still holds the same tensors (``_planned.py``).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import is_
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from precast._dispatch.formulas import are_bare
from precast._dispatch.in_place import mark_written, refuse_inference
from precast.ops._shards import shards_of
from precast.ops._written import refuse_expanded
from precast.ops.cpu_optim import NO_NUMBERS
from precast.optim._rules import Group, Kernel, State

_transform_active = torch._C._are_functorch_transforms_active


@dataclass(frozen=True, slots=True)
class Item:
    """One parameter with a gradient. ``states`` are the op's lists; None for a state that the parameter lacks."""

    position: int  # index among all parameters of the optimizer
    group: Group
    param: Tensor
    local: Tensor  # its local shard, or the parameter itself
    grad: Tensor  # local, as is the copy
    copy: Tensor | None
    states: tuple[State | None, ...]
    state: dict[str, Any]
    fresh: bool  # this step created the state
    rows: tuple[Tensor, ...] | None  # indices of what is updated; None: everything


# Placeholder for a tensor that some parameters lack. It has a version counter, even if this is imported in inference
# mode.
with torch.inference_mode(False):
    _NONE = torch.empty(0, device="cpu")


class Plan:
    """Items in the form that the op accepts."""

    __slots__ = (
        "__weakref__",
        "_alone",
        "_columns",
        "_inference",
        "_kernel",
        "_known",
        "_number",
        "_numbers",
        "_ops",
        "_row",
        "_rows",
        "_values",
        "_written",
        "kept",
        "lists",
        "passing",
        "positions",
        "rows",
        "shards",
    )

    def __init__(self, ops: Any, kernel: Kernel, items: Sequence[Item]) -> None:
        self._ops, self._kernel = ops, kernel
        self.positions = [item.position for item in items]
        self.rows = _rows(items)
        # Tensors that cannot be updated in place, each with the dense copy that is updated instead: of all of it, or of
        # some rows.
        self.passing: list[tuple[Tensor, Tensor, tuple[Tensor, ...] | None]] = []
        self._rows = [item.rows for item in items]
        sharded = [item.param for item in items if item.local is not item.param]
        self.shards = shards_of(tensor for item in items for tensor in (item.param, *item.state.values()))
        params = [
            item.local if item.rows is None and _in_place(item.local) else self._pass(item.local, rows=item.rows)
            for item in items
        ]
        states = [[_state(item, index) for item in items] for index in range(len(kernel.lists))]
        copies = [self._copy(item) for item in items]
        steps = [item.state["step"] for item in items if "step" in item.state]
        shaped = (state is not None and state.shape is not None for state in kernel.lists)
        lists = [
            self._like([_NONE] * len(items) if own else params, tensors)
            for own, tensors in zip(shaped, states, strict=True)
        ]
        self.lists = (params, *lists, steps, self._like(params, copies))
        self._written = [tensor for tensors in self.lists for tensor in tensors if tensor is not _NONE]
        self._written += [item.copy for item in items if item.copy is not None and item.rows is not None]
        # The learning rate, the numbers, the flags and the count of parameters.
        self._row = Struct(f"{len(kernel.numbers) + 3}d")
        self._columns = (kernel.numbers, kernel.at_first or kernel.numbers)
        self._values = bytearray(self._row.size * len(self.rows))
        self._numbers = torch.frombuffer(self._values, dtype=torch.float64)
        # The kernel uses these tensors again, so they must be the real ones, not wrappers around them.
        keeps = hasattr(ops, "optimize_again")
        self.kept = keeps and not self.passing and are_bare(self._written)
        self._number = torch.zeros(1 if self.kept else 0, dtype=torch.int64, device="cpu")
        self._known = False
        # Inference tensors have no version counter. A local shard has no gradient: its DTensor has one.
        self._inference = [tensor for tensor in self._written if tensor.is_inference()]
        self._alone = self.kept and not self.shards and not self._inference
        self._written += sharded

    def _like(self, params: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors in the layouts of their parameters, or dense; an empty list if all are placeholders."""
        if all(tensor is _NONE for tensor in tensors):
            return []
        return [
            tensor
            if tensor is _NONE or (rows is None and (_in_place(tensor) if param is _NONE else _alike(tensor, param)))
            else self._pass(tensor, None if param is _NONE else param, rows=rows)
            for param, tensor, rows in zip(params, tensors, self._rows, strict=True)
        ]

    def _copy(self, item: Item) -> Tensor:
        """The copy, or a placeholder for one that is written as a whole after a step of some rows."""
        if item.copy is None or item.rows is None:
            return _NONE if item.copy is None else item.copy
        refuse_expanded("step", "a copy", item.copy)
        self.passing.append((item.copy, item.local, None))
        return _NONE

    def _pass(self, tensor: Tensor, like: Tensor | None = None, *, rows: tuple[Tensor, ...] | None = None) -> Tensor:
        refuse_expanded("step", "a tensor", tensor)
        if rows is not None:
            dense = tensor[rows]
        elif like is None:
            dense = tensor.resolve_neg().contiguous()
        else:
            dense = torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
        self.passing.append((tensor, dense, rows))
        return dense

    def run(self, given: Sequence[Any], scale: float) -> None:
        """Run one step with the gradients in ``given``, multiplied by ``scale``."""
        refuse_inference("step", self._inference)
        self._fill()
        grads = given if len(given) == len(self.positions) else [given[i] for i in self.positions]
        lists = None if self._known else self.lists
        self._ops.optimize(grads, lists, self._number, self._numbers, scale, self._kernel.number)
        if not self._known:
            self.rows = [(group, False, count) for group, _, count in self.rows]
            self._known = self.kept
            if self.kept:
                weakref.finalize(self, self._ops.forget, self._number).atexit = False
        mark_written(self._written)
        for tensor, dense, rows in self.passing:
            if rows is None:
                tensor.copy_(dense)
            else:
                tensor[rows] = dense

    def run_again(self, scale: float, unscale: float, idle: Iterable[Tensor]) -> bool:
        """Run one step with the parameters' own gradients, and raise the version counters of the written tensors.

        Multiply the gradients by ``unscale`` in place, unless it is 0. Return False, and change nothing, if the plan
        does not fit or an ``idle`` parameter has a gradient now.
        """
        # The op for plans has no rule for torch.func transforms.
        if not self._alone or any(param.grad is not None for param in idle) or _transform_active():
            return False
        self._fill()
        return self._ops.optimize_again(self._number, self._numbers, scale, unscale)  # type: ignore[no-any-return]

    def is_current(self, idle: Iterable[Tensor]) -> bool:
        """Whether ``run_again`` would run."""
        if not self._alone or any(param.grad is not None for param in idle) or _transform_active():
            return False
        return self._ops.optimize_again(self._number, NO_NUMBERS, 1.0, 0.0)  # type: ignore[no-any-return]

    def _fill(self) -> None:
        row, bits, at = self._row, self._kernel.bits, 0
        for group, fresh, count in self.rows:
            numbers = [number(group) for number in self._columns[fresh]]
            row.pack_into(self._values, at, group["lr"], *numbers, bits(group), count)
            at += row.size


@dataclass(frozen=True, slots=True)
class Known:
    """The plan of the last step, and the arguments of that step."""

    plan: Plan
    params: Sequence[Tensor]
    copies: Sequence[Tensor | None]
    missing: Sequence[bool]  # True for each parameter without a gradient
    idle: Sequence[Tensor]  # the parameters without a gradient
    kinds: Sequence[object]  # per group: decides which states exist


def _state(item: Item, index: int) -> Tensor:
    state = item.states[index]
    return _NONE if state is None else state.of(item.param, item.state)


def _rows(items: Iterable[Item]) -> list[tuple[Group, bool, int]]:
    """Runs of consecutive items with the same numbers, and their lengths."""
    rows: list[tuple[Group, bool, int]] = []
    for item in items:
        if rows and rows[-1][0] is item.group and rows[-1][1] == item.fresh:
            rows[-1] = (item.group, item.fresh, rows[-1][2] + 1)
        else:
            rows.append((item.group, item.fresh, 1))
    return rows


def same(these: Sequence[object], those: Sequence[object]) -> bool:
    """Whether both have identical objects in the same order."""
    return len(these) == len(those) and all(map(is_, these, those))


def _in_place(tensor: Tensor) -> bool:
    dense = tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(tensor)
    return dense and not tensor.is_neg()


def _alike(tensor: Tensor, param: Tensor) -> bool:
    if tensor.is_neg():
        return False
    if param.is_contiguous():
        return tensor.is_contiguous()
    return tensor.stride() == param.stride()
