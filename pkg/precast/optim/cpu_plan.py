"""What one step of a CPU optimizer works on, and what stays known of it for the next step.

With a thousand small tensors, looking at them takes longer than updating them. So the kernel keeps the lists of a plan
by a number, and every later step names the number and hands over the gradients alone. The kernel asks each tensor anew
where it lies and what it is; that the optimizer still means the same tensors is for ``Known.fits`` to say.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_, itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from precast.ops._dispatch import mark_written
from precast.ops.cpu_optim import COLUMNS, forget, optimize

Group: TypeAlias = "dict[str, Any]"
Row: TypeAlias = "tuple[float, ...]"
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


_NONE = torch.empty(0)  # what stands for a tensor that one parameter has and another has not


class Plan:
    """Items in the form the op takes."""

    __slots__ = (
        "__weakref__",
        "_known",
        "_number",
        "_numbers",
        "_values",
        "_written",
        "lists",
        "passing",
        "positions",
        "rows",
    )

    def __init__(self, items: Sequence[Item]) -> None:
        self.positions = [item.position for item in items]
        self.rows = _rows(items)
        self.passing: list[tuple[Tensor, Tensor]] = []  # what lies too sparsely to be updated in place, and its copy
        params = [item.param if _is_dense(item.param) else self._pass(item.param) for item in items]
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
        self._number = torch.zeros(0 if self.passing else 1, dtype=torch.int64)
        self._known = False
        if not self.passing:
            weakref.finalize(self, forget, self._number).atexit = False

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
        dense = tensor.contiguous() if like is None else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
        self.passing.append((tensor, dense))
        return dense

    def run(self, rule: int, row: Callable[[Group, bool], Row], given: Sequence[Any], scale: float) -> None:
        """One step with the gradients of ``given``, which are multiplied by ``scale``."""
        values, at = self._values, 0
        for group, fresh, count in self.rows:
            values[at : at + COLUMNS] = array("d", (*row(group, fresh), count))
            at += COLUMNS
        grads = given if len(given) == len(self.positions) else [given[i] for i in self.positions]
        optimize(grads, None if self._known else self.lists, self._number, self._numbers, scale, rule)
        if not self._known:
            self.rows = [(group, False, count) for group, _, count in self.rows]
            self._known = not self.passing
        mark_written(self._written)
        for tensor, dense in self.passing:
            tensor.copy_(dense)


@dataclass(frozen=True, slots=True)
class Known:
    """The plan of the last step, and what the optimizer looked like then."""

    plan: Plan
    params: Sequence[Tensor]
    copies: Sequence[Tensor | None] | None
    missing: Sequence[bool]  # which parameters had no gradient
    keys: Sequence[Tensor]
    states: Sequence[dict[str, Any]]
    entries: Mapping[str, tuple[Sequence[dict[str, Any]], Sequence[Tensor]]]
    shapes: Sequence[object]  # what decides which states there are, group by group

    def fits(
        self,
        params: Sequence[Tensor],
        given: Sequence[Tensor | None],
        copies: Sequence[Tensor | None] | None,
        state: Mapping[Tensor, dict[str, Any]],
        shapes: Sequence[object],
    ) -> bool:
        """Whether a step now is about the very same tensors."""
        return (
            _same(params, self.params)
            and [grad is None for grad in given] == self.missing
            and _same(copies or (), self.copies or ())
            and shapes == self.shapes
            and len(state) == len(self.keys)
            and all(map(is_, state, self.keys))
            and all(map(is_, state.values(), self.states))
            and all(self._holds(name, *pair) for name, pair in self.entries.items())
        )

    @staticmethod
    def _holds(name: str, states: Sequence[dict[str, Any]], tensors: Sequence[Tensor]) -> bool:
        try:
            return all(map(is_, map(itemgetter(name), states), tensors))
        except KeyError:
            return False


def entries_of(items: Iterable[Item]) -> dict[str, tuple[list[dict[str, Any]], list[Tensor]]]:
    """Every state tensor that the items use, by its name."""
    entries: dict[str, tuple[list[dict[str, Any]], list[Tensor]]] = {}
    for item in items:
        for name in (*filter(None, item.names), *(("step",) if "step" in item.state else ())):
            states, tensors = entries.setdefault(name, ([], []))
            states.append(item.state)
            tensors.append(item.state[name])
    return entries


def _rows(items: Iterable[Item]) -> list[tuple[Group, bool, int]]:
    """Neighbours with the same numbers, and how many they are."""
    rows: list[tuple[Group, bool, int]] = []
    for item in items:
        if rows and rows[-1][0] is item.group and rows[-1][1] == item.fresh:
            rows[-1] = (item.group, item.fresh, rows[-1][2] + 1)
        else:
            rows.append((item.group, item.fresh, 1))
    return rows


def _same(these: Sequence[object], those: Sequence[object]) -> bool:
    return len(these) == len(those) and all(map(is_, these, those))


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(tensor)


def _alike(tensor: Tensor, param: Tensor) -> bool:
    if param.is_contiguous():
        return tensor.is_contiguous()
    return tensor.stride() == param.stride()
