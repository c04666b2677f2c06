"""The tensors of a step, as a table for the programs: checked once, and compared again before each launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from torch import Tensor

from precast._dispatch.formulas import are_bare, means_its_memory
from precast.ops._written import check_apart
from precast.ops.multi_tensor.twin_updates import (
    COLUMNS,
    COPY,
    ELEMENTS,
    FIRST,
    FIRST_PROGRAM,
    GRAD,
    PARAM,
    SECOND,
    THIRD,
)

BLOCK = 1024  # elements per program
_MEMBERS = 6
_FOR_GRAPHS: list[tuple[Tensor, Tensor]] = []  # for the life of the process


@dataclass(frozen=True, eq=False, slots=True)
class Launch:
    """The rows of the table for one launch: tensors of the same dtypes."""

    first: int
    count: int
    programs: int
    owners: int  # offset in the table of the list that maps each program to its row
    types: tuple[Tensor | None, ...]  # by member: a tensor of its dtype, or None if the member is absent


class Plan:
    """Lists of tensors by member, in the order of the table's columns; empty lists are omitted.

    ``places`` has the group and the slot of each index. ``idle`` holds the parameters that must have no gradient.
    ``once``: the plan is for one call.
    """

    def __init__(
        self,
        op: str,
        lists: Mapping[str, Sequence[Tensor]],
        idle: Sequence[Tensor] = (),
        places: Sequence[Sequence[int]] | None = None,
        *,
        once: bool = True,
    ) -> None:
        members = [list(tensors) for tensors in lists.values()]
        members += [[]] * (_MEMBERS - len(members))
        _check_layout(op, {name: tensors for name, tensors in lists.items() if tensors})
        params = members[PARAM]
        self.device = params[0].device
        self._idle = tuple(idle)
        keys = [tuple(m[i].dtype if m else None for m in members) for i in range(len(params))]
        self._order = sorted(range(len(params)), key=lambda i: str(keys[i]))
        self._members = [[m[i] for i in self._order] if m else [] for m in members]
        if places is not None:
            written = (self._members[member] for member in (PARAM, FIRST, SECOND, THIRD, COPY))
            check_apart(op, chain.from_iterable(written), self._members[GRAD])
        self.slots = [slot for _, slot in places or ()]  # by index
        self.coefficients: Tensor | None = None  # of the last step
        ranked = [(0, i) if places is None else places[i] for i in self._order]
        nothing = [0] * len(params)
        self._columns = [_addresses(m) if m else nothing for m in self._members]
        self._columns += [_sizes(self._members[PARAM]), nothing]
        self._columns += [[slot for _, slot in ranked], [group for group, _ in ranked]]
        self._grad_dtypes = [tensor.dtype for tensor in self._members[GRAD]]
        self._cut_launches([keys[i] for i in self._order])
        self._aligned: bool | None = None  # None: not computed yet; the same for the table
        self._table: Tensor | None = None
        self._stream: Any = None
        # A graph outlives the plan of a single call, and nothing says when it ends.
        self._captured = _FOR_GRAPHS if once else []

    def _cut_launches(self, keys: list[tuple[torch.dtype | None, ...]]) -> None:
        count = len(keys)
        cuts = [i for i in range(count) if i == 0 or keys[i] != keys[i - 1]]
        first_programs: list[int] = []
        owners, launches, at = [], [], count * COLUMNS
        for begin, end in pairwise([*cuts, count]):
            programs = [-(-n // BLOCK) for n in self._columns[ELEMENTS][begin:end]]
            first_programs += [0, *accumulate(programs[:-1])]
            rows = torch.arange(begin, end, device="cpu")
            owners.append(torch.repeat_interleave(rows, torch.tensor(programs, device="cpu")))
            types = tuple(None if t is None else torch.empty(1, dtype=t, device=self.device) for t in keys[begin])
            launches.append(Launch(begin, end - begin, len(owners[-1]), at, types))
            at += len(owners[-1])
        self._columns[FIRST_PROGRAM] = first_programs
        self.launches = tuple(launches)
        self._owners = torch.cat(owners)

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self._order)

    @property
    def aligned(self) -> bool:
        """Whether every tensor is aligned to 16 bytes."""
        if self._aligned is None:
            self._aligned = not any(address % 16 for column in self._columns[:_MEMBERS] for address in column)
        return self._aligned

    def has(self, member: int) -> bool:
        """Whether this member has a list."""
        return bool(self._members[member])

    def current(self, grads: Sequence[Tensor]) -> bool:
        """Whether every tensor is unchanged, except for gradients, whose new addresses are recorded.

        The gradients are ``grads``, or those of the parameters if ``grads`` is empty.
        """
        if grads and len(grads) != self.count:
            return False
        params = self._members[PARAM]
        for member, tensors in enumerate(self._members):
            if tensors and member != GRAD and _addresses(tensors) != self._columns[member]:
                return False
        owners = self._members[COPY] or params
        found = [grads[i] for i in self._order] if grads else [param.grad for param in owners]
        now = [grad for grad in found if grad is not None and grad.device == self.device]
        if [grad.dtype for grad in now] != self._grad_dtypes or _sizes(params) != self._columns[ELEMENTS]:
            return False
        if not means_its_memory(*params) or not (grads or are_bare(now)):
            return False
        if _sizes(now) != self._columns[ELEMENTS] or not all(map(_fits, now, params)):
            return False
        addresses = _addresses(now)
        if addresses != self._columns[GRAD]:
            self._columns[GRAD] = addresses
            self._table = self._aligned = None
        return bool(grads) or all(param.grad is None for param in self._idle)

    def check_gradients(self, op: str) -> None:
        """Raise if two gradients share memory."""
        columns = zip(self._columns[GRAD], self._columns[ELEMENTS], self._grad_dtypes, strict=True)
        ranges = sorted((begin, begin + count * dtype.itemsize) for begin, count, dtype in columns)
        if any(after[0] < before[1] for before, after in pairwise(ranges)):
            raise RuntimeError(f"{op}: two gradients share memory; each must have its own to be unscaled in place")

    def table(self) -> Tensor:
        """The rows and the owners on the device; written again if a gradient has moved or on another stream.

        The stream orders the copy of a table before its use. A captured table lives as long as the plan.
        """
        if self.device.type == "cpu":  # in Triton's interpreter
            return self._written(pinned=False)
        stream = getattr(torch, self.device.type).current_stream(self.device)
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if self._table is None or (stream != self._stream and not capturing):
            host = self._written(pinned=True)
            self._table, self._stream = host.to(self.device, non_blocking=True), stream
            if capturing:  # every replay copies the table again
                self._captured.append((host, self._table))
        elif capturing:
            self._captured.append((self._table, self._table))
        return self._table

    def _written(self, *, pinned: bool) -> Tensor:
        rows = torch.tensor(self._columns, dtype=torch.int64, device="cpu").t()
        host = torch.cat([rows.flatten(), self._owners])
        return host.pin_memory() if pinned else host


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _sizes(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def _fits(tensor: Tensor, head: Tensor) -> bool:
    """Whether two tensors have the same order of elements in memory."""
    if head.is_contiguous():
        return tensor.is_contiguous()
    strides = zip(tensor.shape, tensor.stride(), head.stride(), strict=False)
    return tensor.shape == head.shape and all(a == b for size, a, b in strides if size > 1)


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has no gap and no overlap, in any dimension order: only then empty_like keeps its strides."""
    return tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def _check_layout(op: str, lists: Mapping[str, Sequence[Tensor]]) -> None:
    (head_name, heads), *_ = lists.items()
    for name, tensors in lists.items():
        for index, (tensor, head) in enumerate(zip(tensors, heads, strict=True)):
            if _is_dense(head) and _fits(tensor, head):
                continue
            raise RuntimeError(
                f"{op}: {name}[{index}] (shape {tuple(tensor.shape)}) has gaps or overlaps in memory, or another "
                f"memory layout than {head_name}[{index}]; contiguous tensors are needed, or dense ones with "
                "the same sizes and strides"
            )
