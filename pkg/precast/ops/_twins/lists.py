"""The tensors of a step as the programs find them: checked once, and held against what they are before each launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from precast.ops._twins import updates
from precast.ops._twins.updates import COLUMNS, COPY, FIRST, FIRST_PROGRAM, GRAD, PARAM, SECOND, THIRD

BLOCK = 1024  # elements of a program
_MEMBERS = 6


@dataclass(frozen=True, eq=False, slots=True)
class Launch:
    """Rows of the table that one launch goes over: tensors of the same dtypes."""

    first: int
    count: int
    programs: int
    owners: int  # where in the table the row of each program stands
    types: tuple[Tensor | None, ...]  # by member: a tensor of its dtype, or None where there is none


class Plan:
    """Lists of tensors by member, in the order of the table's columns; empty ones are left out.

    ``places`` has the group and the slot of each index. ``idle`` are parameters that must have no gradient.
    """

    def __init__(
        self,
        op: str,
        lists: Mapping[str, Sequence[Tensor]],
        idle: Sequence[Tensor] = (),
        places: Sequence[Sequence[int]] | None = None,
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
        self._dtypes = [tensor.dtype for tensor in self._members[GRAD]]
        self._rows = [[m[i].data_ptr() if m else 0 for m in members] for i in self._order]
        for row, i in zip(self._rows, self._order, strict=True):
            group, slot = (0, i) if places is None else places[i]
            row += [params[i].numel(), 0, slot, group]
        if places is not None:
            _check_overlap(op, self._members)
        self._cut_launches([keys[i] for i in self._order])
        self._aligned: bool | None = None  # not known; likewise the table
        self._table: Tensor | None = None
        self._stream: Any = None
        self._captured: list[tuple[Tensor, Tensor]] = []

    def _cut_launches(self, keys: list[tuple[torch.dtype | None, ...]]) -> None:
        count = len(keys)
        cuts = [i for i in range(count) if i == 0 or keys[i] != keys[i - 1]]
        owners, at, launches = [], count * COLUMNS, []
        for begin, end in pairwise([*cuts, count]):
            blocks = torch.tensor([-(-row[updates.ELEMENTS] // BLOCK) for row in self._rows[begin:end]], device="cpu")
            for row, before in zip(self._rows[begin:end], (blocks.cumsum(0) - blocks).tolist(), strict=True):
                row[FIRST_PROGRAM] = before
            owners.append(torch.repeat_interleave(torch.arange(begin, end, device="cpu"), blocks))
            types = tuple(None if t is None else torch.empty(1, dtype=t, device=self.device) for t in keys[begin])
            launches.append(Launch(begin, end - begin, len(owners[-1]), at, types))
            at += len(owners[-1])
        self.launches = tuple(launches)
        self._owners = torch.cat(owners)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    @property
    def aligned(self) -> bool:
        """Whether every tensor begins at a multiple of 16 bytes."""
        if self._aligned is None:
            self._aligned = not any(address % 16 for row in self._rows for address in row[:_MEMBERS])
        return self._aligned

    def has(self, member: int) -> bool:
        """Whether there is a list of this member."""
        return bool(self._members[member])

    def current(self, grads: Sequence[Tensor]) -> bool:
        """True when every tensor is where and what it was, but for gradients, whose new places are taken over.

        Gradients are ``grads``, or, if that is empty, those of the parameters.
        """
        if grads and len(grads) != self.count:
            return False
        fixed = [(member, tensors) for member, tensors in enumerate(self._members) if tensors and member != GRAD]
        params, owners = self._members[PARAM], self._members[COPY] or self._members[PARAM]
        for i, row in enumerate(self._rows):
            if any(tensors[i].data_ptr() != row[member] for member, tensors in fixed):
                return False
            param = params[i]
            grad = grads[self._order[i]] if grads else owners[i].grad
            if param.numel() != row[updates.ELEMENTS] or grad is None or grad.dtype != self._dtypes[i]:
                return False
            if grad.numel() != param.numel() or grad.device != self.device or not _fits(grad, param):
                return False
            if grad.data_ptr() != row[GRAD]:
                row[GRAD] = grad.data_ptr()
                self._table = self._aligned = None
        return bool(grads) or all(param.grad is None for param in self._idle)

    def table(self) -> Tensor:
        """The rows and the owners on the device: written anew if a gradient has moved, or on another stream.

        The order of a table and its use is the stream's. What a graph has captured stays as long as the plan.
        """
        if self.device.type == "cpu":  # in Triton's interpreter
            return self._written(pinned=False)
        stream = getattr(torch, self.device.type).current_stream(self.device)
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if self._table is None or (stream != self._stream and not capturing):
            host = self._written(pinned=True)
            self._table, self._stream = host.to(self.device, non_blocking=True), stream
            if capturing:  # every replay copies it again
                self._captured.append((host, self._table))
        elif capturing:
            self._captured.append((self._table, self._table))
        return self._table

    def _written(self, *, pinned: bool) -> Tensor:
        host = torch.cat([torch.tensor(self._rows, dtype=torch.int64, device="cpu").flatten(), self._owners])
        return host.pin_memory() if pinned else host


def _fits(tensor: Tensor, head: Tensor) -> bool:
    """Whether the elements of a tensor lie in the order of another one's."""
    if head.is_contiguous():
        return tensor.is_contiguous()
    strides = zip(tensor.shape, tensor.stride(), head.stride(), strict=False)
    return tensor.shape == head.shape and all(a == b for size, a, b in strides if size > 1)


def _is_dense(tensor: Tensor) -> bool:
    """No gap and no overlap, in whatever order of dimensions: then alone a new tensor gets the same strides."""
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


def _check_overlap(op: str, members: Sequence[Sequence[Tensor]]) -> None:
    """Two tensors that share memory would be updated twice, or at once. Gradients may share with each other."""
    written = [tensor for m in (PARAM, FIRST, SECOND, THIRD, COPY) for tensor in members[m]]
    ours, read = sorted(map(_range, written)), sorted(map(_range, members[GRAD]))
    if any(after[0] < before[1] for before, after in pairwise(ours)):
        raise RuntimeError(f"{op}: two of the parameters and their states share memory; each must have its own")
    both = sorted([*((*r, True) for r in ours), *((*r, False) for r in read)])
    end = {True: 0, False: 0}  # the greatest of what was written, and of what is read
    for first, last, is_ours in both:
        if first < last and first < end[not is_ours]:
            raise RuntimeError(f"{op}: a gradient shares memory with a tensor that is written; it must have its own")
        end[is_ours] = max(end[is_ours], last)


def _range(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
