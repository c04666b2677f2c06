"""What one step of a CPU optimizer works on, and what stays known of it for the next step.

With a thousand small tensors, looking at them takes longer than updating them. So the kernel keeps the lists of a plan
by a number, and a later step names that number alone; the gradients are handed over only where they are not simply
those of the parameters. The kernel asks each tensor anew where it lies and what it is; that the optimizer still means
the same tensors is for the optimizer to say (``_planned.py``).
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_
from typing import Any, TypeAlias

import torch
from torch import Tensor

from precast._dispatch.formulas import are_bare, mark_written
from precast.ops.cpu_optim import COLUMNS, forget, optimize, optimize_again

Group: TypeAlias = "dict[str, Any]"
Row: TypeAlias = "tuple[float, ...]"
_transform_active = torch._C._are_functorch_transforms_active
STATES = 3  # what one parameter can have: two moments, and the maximum of the second


@dataclass(frozen=True, slots=True)
class Item:
    """One parameter with a gradient. ``names`` says where its states are, None where the rule has none of the kind."""

    position: int  # among all parameters of the optimizer
    group: Group
    param: Tensor
    grad: Tensor
    copy: Tensor | None
    names: tuple[str | None, ...]
    state: dict[str, Any]
    fresh: bool  # the state was made for this step


# What stands for a tensor that one parameter has and another has not. It has a version wherever this is imported.
with torch.inference_mode(False):
    _NONE = torch.empty(0)


class Plan:
    """Items in the form the op takes."""

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
    )

    def __init__(self, items: Sequence[Item]) -> None:
        self.positions = [item.position for item in items]
        self.rows = _rows(items)
        self.passing: list[
            tuple[Tensor, Tensor]
        ] = []  # what cannot be updated in place, as it lies too sparsely, and its copy
        params = [item.param if _in_place(item.param) else self._pass(item.param) for item in items]
        states = [
            [_NONE if (name := item.names[index]) is None else item.state[name] for item in items]
            for index in range(STATES)
        ]
        copies = [_NONE if item.copy is None else item.copy for item in items]
        steps = [item.state["step"] for item in items if "step" in item.state]
        first, second, third, targets = (self._like(params, tensors) for tensors in (*states, copies))
        self.lists = (params, first, second, third, steps, targets)
        self._written = [tensor for tensors in self.lists for tensor in tensors if tensor is not _NONE]
        self._values = array("d", bytes(8 * COLUMNS * len(self.rows)))
        self._numbers = torch.frombuffer(self._values, dtype=torch.float64)
        # The kernel keeps what it is handed: that must be the tensors themselves, not what they stand for.
        self.kept = not self.passing and are_bare(self._written)
        self._number = torch.zeros(1 if self.kept else 0, dtype=torch.int64)
        self._known = False
        # A tensor of inference mode has no version that could be counted.
        self._alone = self.kept and not any(tensor.is_inference() for tensor in self._written)

    def _like(self, params: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors in the layouts of their parameters; nothing if there are none at all."""
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
        """One step with the gradients of ``given``, which are multiplied by ``scale``."""
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
        """One step with the gradients that the parameters have, which autograd is told of.

        False, and nothing is done, if they cannot be taken as they are, or ``idle`` parameters have one as well.
        """
        # Under a transform the op for plans would not be asked what it makes of that.
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
    """The plan of the last step, and what the optimizer was given then."""

    plan: Plan
    params: Sequence[Tensor]
    copies: Sequence[Tensor | None]
    missing: Sequence[bool]  # which parameters had no gradient
    kinds: Sequence[object]  # what decides which states there are, group by group

    @property
    def idle(self) -> Iterable[Tensor]:
        """The parameters that had no gradient."""
        return compress(self.params, self.missing)


def _rows(items: Iterable[Item]) -> list[tuple[Group, bool, int]]:
    """Neighbours with the same numbers, and how many they are."""
    rows: list[tuple[Group, bool, int]] = []
    for item in items:
        if rows and rows[-1][0] is item.group and rows[-1][1] == item.fresh:
            rows[-1] = (item.group, item.fresh, rows[-1][2] + 1)
        else:
            rows.append((item.group, item.fresh, 1))
    return rows


def same(these: Sequence[object], those: Sequence[object]) -> bool:
    """Whether these are the very same things in the same order."""
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
