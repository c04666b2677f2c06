"""The work of one step of a CPU optimizer, kept as a plan for the next step.

With a thousand small tensors, inspecting them takes longer than updating them. So the kernel knows the lists of a plan
by a number, and a later step passes only that number. It passes gradients only if they are not the parameters' own
``.grad``. At each step, the kernel checks the address, dtype and storage of every tensor. The optimizer itself checks
that it still holds the same tensors (``_planned.py``).
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from precast._dispatch.formulas import are_bare
from precast._dispatch.in_place import mark_written, refuse_inference
from precast.ops._shards import local_like, shards_of
from precast.ops._written import refuse_expanded
from precast.ops.cpu_optim import COLUMNS, NO_NUMBERS, forget, optimize, optimize_again

Group: TypeAlias = "dict[str, Any]"
_transform_active = torch._C._are_functorch_transforms_active
STATES = 3  # at most: two moments, and the maximum of the second


class Row(NamedTuple):
    """The numbers of a group, in the order of the op's table. A rule omits the numbers that it does not use."""

    lr: float
    beta1: float = 0.0  # SGD: the momentum
    beta2: float = 0.0
    eps: float = 0.0
    weight_decay: float = 0.0
    extra: float = 0.0  # SGD: the dampening; Adagrad: the decay of the learning rate; Adam: no bias correction
    flag: float = 0.0  # Adam: the decay is decoupled; SGD: Nesterov
    maximize: float = 0.0


@dataclass(frozen=True, slots=True)
class Item:
    """One parameter with a gradient. ``names`` has the keys of its states; None for a state that the rule lacks."""

    position: int  # index among all parameters of the optimizer
    group: Group
    param: Tensor
    local: Tensor  # its local shard, or the parameter itself
    grad: Tensor  # local, as is the copy
    copy: Tensor | None
    names: tuple[str | None, ...]
    state: dict[str, Any]
    fresh: bool  # this step created the state
    rows: tuple[Tensor, ...] | None  # indices of what is updated; None: everything


# Placeholder for a tensor that some parameters lack. It has a version counter, even if this is imported in inference
# mode.
with torch.inference_mode(False):
    _NONE = torch.empty(0)


class Plan:
    """Items in the form that the op accepts."""

    __slots__ = (
        "__weakref__",
        "_alone",
        "_inference",
        "_known",
        "_number",
        "_numbers",
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

    def __init__(self, items: Sequence[Item]) -> None:
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
        states = [[_state(item, item.names[index]) for item in items] for index in range(STATES)]
        copies = [self._copy(item) for item in items]
        steps = [item.state["step"] for item in items if "step" in item.state]
        first, second, third, targets = (self._like(params, tensors) for tensors in (*states, copies))
        self.lists = (params, first, second, third, steps, targets)
        self._written = [tensor for tensors in self.lists for tensor in tensors if tensor is not _NONE]
        self._written += [item.copy for item in items if item.copy is not None and item.rows is not None]
        self._values = array("d", bytes(8 * COLUMNS * len(self.rows)))
        self._numbers = torch.frombuffer(self._values, dtype=torch.float64)
        # The kernel uses these tensors again, so they must be the real ones, not wrappers around them.
        self.kept = not self.passing and are_bare(self._written)
        self._number = torch.zeros(1 if self.kept else 0, dtype=torch.int64)
        self._known = False
        # Inference tensors have no version counter. A local shard has no gradient: its DTensor has one.
        self._inference = [tensor for tensor in self._written if tensor.is_inference()]
        self._alone = self.kept and not self.shards and not self._inference
        self._written += sharded

    def _like(self, params: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors in the layouts of their parameters; an empty list if all are placeholders."""
        if all(tensor is _NONE for tensor in tensors):
            return []
        return [
            tensor
            if tensor is _NONE or (rows is None and _alike(tensor, param))
            else self._pass(tensor, param, rows=rows)
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

    def run(self, rule: int, row: Callable[[Group, bool], Row], given: Sequence[Any], scale: float) -> None:
        """Run one step with the gradients in ``given``, multiplied by ``scale``."""
        refuse_inference("step", self._inference)
        self._fill(row)
        grads = given if len(given) == len(self.positions) else [given[i] for i in self.positions]
        optimize(grads, None if self._known else self.lists, self._number, self._numbers, scale, rule)
        if not self._known:
            self.rows = [(group, False, count) for group, _, count in self.rows]
            self._known = self.kept
            if self.kept:
                weakref.finalize(self, forget, self._number).atexit = False
        mark_written(self._written)
        for tensor, dense, rows in self.passing:
            if rows is None:
                tensor.copy_(dense)
            else:
                tensor[rows] = dense

    def run_again(
        self, row: Callable[[Group, bool], Row], scale: float, unscale: float, idle: Iterable[Tensor]
    ) -> bool:
        """Run one step with the parameters' own gradients, and raise the version counters of the written tensors.

        Multiply the gradients by ``unscale`` in place, unless it is 0. Return False, and change nothing, if the plan
        does not fit or an ``idle`` parameter has a gradient now.
        """
        # The op for plans has no rule for torch.func transforms.
        if not self._alone or any(param.grad is not None for param in idle) or _transform_active():
            return False
        self._fill(row)
        return optimize_again(self._number, self._numbers, scale, unscale)

    def is_current(self, idle: Iterable[Tensor]) -> bool:
        """Whether ``run_again`` would run."""
        if not self._alone or any(param.grad is not None for param in idle) or _transform_active():
            return False
        return optimize_again(self._number, NO_NUMBERS, 1.0, 0.0)

    def _fill(self, row: Callable[[Group, bool], Row]) -> None:
        values, at = self._values, 0
        for group, fresh, count in self.rows:
            values[at : at + COLUMNS] = array("d", (*row(group, fresh), count))
            at += COLUMNS


@dataclass(frozen=True, slots=True)
class Known:
    """The plan of the last step, and the arguments of that step."""

    plan: Plan
    params: Sequence[Tensor]
    copies: Sequence[Tensor | None]
    missing: Sequence[bool]  # True for each parameter without a gradient
    idle: Sequence[Tensor]  # the parameters without a gradient
    kinds: Sequence[object]  # per group: decides which states exist


def _state(item: Item, name: str | None) -> Tensor:
    return _NONE if name is None else local_like(item.state[name], item.param, f"its {name}")


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
