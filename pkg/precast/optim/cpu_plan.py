"""The work of one step of a CPU optimizer, kept as a plan for the next step.

With a thousand small tensors, inspecting them takes longer than updating them. So the kernel keeps the lists of a plan
under a number, and a later step passes only that number. It passes gradients only if they are not the parameters' own
``.grad``. At each step, the kernel checks the address, dtype and storage of every tensor. The optimizer itself checks
that it still holds the same tensors (``_planned.py``).
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from precast._dispatch.formulas import are_bare, mark_written
from precast.ops._shards import local_like
from precast.ops.cpu_optim import COLUMNS, forget, optimize, optimize_again

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
    extra: float = 0.0  # SGD: the dampening; Adagrad: the decay of the learning rate
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


# Placeholder for a tensor that some parameters lack. It has a version counter, even if this is imported in inference
# mode.
with torch.inference_mode(False):
    _NONE = torch.empty(0)


class Plan:
    """Items in the form that the op accepts."""

    __slots__ = (
        "__weakref__",
        "_alone",
        "_known",
        "_number",
        "_numbers",
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
        # Tensors whose layout prevents an update in place, each with the dense copy that is updated instead.
        self.passing: list[tuple[Tensor, Tensor]] = []
        sharded = [item.param for item in items if item.local is not item.param]
        self.shards = [(param, cast("Any", param)._local_tensor) for param in sharded]  # the DTensors of the plan
        params = [item.local if _in_place(item.local) else self._pass(item.local) for item in items]
        states = [[self._state(item, item.names[index]) for item in items] for index in range(STATES)]
        copies = [_NONE if item.copy is None else item.copy for item in items]
        steps = [item.state["step"] for item in items if "step" in item.state]
        first, second, third, targets = (self._like(params, tensors) for tensors in (*states, copies))
        self.lists = (params, first, second, third, steps, targets)
        self._written = [tensor for tensors in self.lists for tensor in tensors if tensor is not _NONE]
        self._values = array("d", bytes(8 * COLUMNS * len(self.rows)))
        self._numbers = torch.frombuffer(self._values, dtype=torch.float64)
        # The kernel keeps these tensors, so they must be the real ones, not wrappers around them.
        self.kept = not self.passing and are_bare(self._written)
        self._number = torch.zeros(1 if self.kept else 0, dtype=torch.int64)
        self._known = False
        # Inference tensors have no version counter. A local shard has no gradient: its DTensor has one.
        self._alone = self.kept and not self.shards and not any(tensor.is_inference() for tensor in self._written)
        self._written += sharded

    def _state(self, item: Item, name: str | None) -> Tensor:
        if name is None:
            return _NONE
        state: Tensor = item.state[name]
        if item.local is item.param:
            return state
        local = local_like(state, item.param, f"its {name}")
        self.shards.append((state, cast("Any", state)._local_tensor))
        return local

    def has_shards(self) -> bool:
        """Whether each DTensor still has the local shard that the plan knows."""
        return all(cast("Any", tensor)._local_tensor is shard for tensor, shard in self.shards)

    def _like(self, params: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors in the layouts of their parameters; an empty list if all are placeholders."""
        if all(tensor is _NONE for tensor in tensors):
            return []
        return [
            tensor if tensor is _NONE or _alike(tensor, param) else self._pass(tensor, param)
            for param, tensor in zip(params, tensors, strict=True)
        ]

    def _pass(self, tensor: Tensor, like: Tensor | None = None) -> Tensor:
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise RuntimeError(
                f"a tensor of shape {tuple(tensor.shape)} has one place for many elements (strides "
                f"{tensor.stride()}) and cannot be updated; nothing was"
            )
        dense = (
            tensor.resolve_neg().contiguous()
            if like is None
            else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
        )
        self.passing.append((tensor, dense))
        return dense

    def run(self, rule: int, row: Callable[[Group, bool], Row], given: Sequence[Any], scale: float) -> None:
        """Run one step with the gradients in ``given``, multiplied by ``scale``."""
        self._fill(row)
        grads = given if len(given) == len(self.positions) else [given[i] for i in self.positions]
        optimize(grads, None if self._known else self.lists, self._number, self._numbers, scale, rule)
        if not self._known:
            self.rows = [(group, False, count) for group, _, count in self.rows]
            self._known = self.kept
            if self.kept:
                weakref.finalize(self, forget, self._number).atexit = False
        mark_written(self._written)
        for tensor, dense in self.passing:
            tensor.copy_(dense)

    def run_again(self, row: Callable[[Group, bool], Row], scale: float, idle: Iterable[Tensor]) -> bool:
        """Run one step with the parameters' own gradients, and raise the version counters of the written tensors.

        Return False, and change nothing, if the plan does not fit or an ``idle`` parameter has a gradient now.
        """
        # The op for plans has no rule for torch.func transforms.
        if not self._alone or any(param.grad is not None for param in idle) or _transform_active():
            return False
        self._fill(row)
        return optimize_again(self._number, self._numbers, scale)

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
    kinds: Sequence[object]  # per group: decides which states exist

    @property
    def idle(self) -> Iterable[Tensor]:
        """The parameters without a gradient."""
        return compress(self.params, self.missing)


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
