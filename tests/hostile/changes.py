"""What can be wrong with one argument: each change gives another value for it, or None if it has no such form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Change(NamedTuple):
    """A change of one argument, and what must come of it."""

    make: Callable[..., Any]
    must_fail: bool = False  # otherwise plain torch decides
    aliases: bool = False  # shares memory: plain torch is given copies


# ---- tensors ----


def _resized(size: Callable[[Tensor], int]) -> Callable[[Tensor], Any]:
    def make(old: Tensor) -> Any:
        if old.numel() == 0:
            return None
        new = old.clone(memory_format=torch.contiguous_format)
        new.untyped_storage().resize_(size(new))
        return new

    return make


def _negative(old: Tensor) -> Any:
    return None if old.dtype == torch.bool else torch._neg_view(-old)


def _conjugate(old: Tensor) -> Any:
    """A real tensor out of a conjugate one: its bit is set, and it has gaps."""
    if old.dtype not in (torch.float32, torch.float64):
        return None
    return torch.complex(torch.zeros_like(old), -old).conj().imag


def _inference(old: Tensor) -> Tensor:
    with torch.inference_mode():
        return old.clone()


def _narrowed(dim: int) -> Callable[[Tensor], Any]:
    return lambda old: old.narrow(dim, 0, 0).clone() if old.dim() > abs(dim + 0.5) - 0.5 else None


def _cast(dtype: torch.dtype) -> Callable[[Tensor], Any]:
    return lambda old: None if old.dtype == dtype else old.to(dtype)


def _longer(dim: int) -> Callable[[Tensor], Any]:
    return lambda old: torch.cat((old, old.narrow(dim, 0, 1)), dim) if old.numel() else None


def _gaps(old: Tensor) -> Tensor:
    return torch.stack((old, old), dim=-1)[..., 0]


def _turned(old: Tensor) -> Any:
    return old.transpose(0, -1).contiguous().transpose(0, -1) if old.dim() > 1 else None


def _shifted(old: Tensor) -> Tensor:
    flat = torch.zeros(old.numel() + 1, dtype=old.dtype, device=old.device)[1:]
    return flat.copy_(old.flatten()).view(old.shape)


def _expanded(dim: int) -> Callable[[Tensor], Any]:
    def make(old: Tensor) -> Any:
        return old.narrow(dim, 0, 1).clone().expand(old.shape) if old.dim() and old.shape[dim] > 1 else None

    return make


def _windows(old: Tensor) -> Any:
    """Rows that begin one element after another."""
    if old.dim() < 2 or not old.numel():
        return None
    flat = old.flatten()[: old.shape[-1] + old.numel() // old.shape[-1]].clone()
    strides = [int(old.shape[i + 1 : -1].numel()) for i in range(old.dim() - 1)]
    return flat.as_strided(old.shape, (*strides, 1))


def _filled(value: float) -> Callable[[Tensor], Any]:
    """One element of another value; the first of the last row, so that a check of the first alone misses it."""

    def make(old: Tensor) -> Any:
        kind = torch.iinfo(old.dtype) if not old.is_floating_point() and old.dtype != torch.bool else None
        if not old.numel() or (kind is None) == isinstance(value, int):
            return None
        if kind is not None and not kind.min <= value <= kind.max:
            return None
        new = old.clone(memory_format=torch.contiguous_format)
        new.view(-1)[-new.shape[-1] if new.dim() else 0] = value
        return new

    return make


def _other_device(old: Tensor) -> Any:
    if old.device.type != "cpu":
        return old.cpu()
    return old.cuda() if torch.cuda.is_available() else None


def _sparse(old: Tensor) -> Any:
    return old.to_sparse() if old.dim() else None


DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "float8_e4m3fn"),
    *("int64", "int32", "int16", "uint8", "bool"),
)
NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -(2**31) - 1, -(2**63))
FLOATS = (math.nan, math.inf, -math.inf, -0.0, 3e38, 1e-42)

TENSOR: dict[str, Change] = {
    "freed": Change(_resized(lambda new: 0), must_fail=True),
    "halved": Change(_resized(lambda new: new.nbytes // 2), must_fail=True),
    "one short": Change(_resized(lambda new: new.nbytes - 1), must_fail=True),
    "negative": Change(_negative),
    "conjugate": Change(_conjugate),
    "inference": Change(_inference),
    "zeros without memory": Change(
        lambda old: torch._efficientzerotensor(old.shape, dtype=old.dtype, device=old.device)
    ),
    "meta": Change(lambda old: old.to("meta")),
    "sparse": Change(_sparse),
    "other device": Change(_other_device),
    "complex conjugate": Change(lambda old: old.to(torch.complex64).conj(), must_fail=True),
    **{name: Change(_cast(getattr(torch, name))) for name in DTYPES},
    "no first": Change(_narrowed(0)),
    "no last": Change(_narrowed(-1)),
    "no second": Change(_narrowed(1)),
    "nothing": Change(lambda old: old.new_empty(0)),
    "scalar": Change(lambda old: old.new_ones(()) if old.dim() else None),
    "one more dimension": Change(lambda old: old.unsqueeze(0)),
    "one dimension less": Change(lambda old: old.flatten(0, 1) if old.dim() > 1 else None),
    "longer first": Change(lambda old: _longer(0)(old) if old.dim() else None),
    "longer last": Change(lambda old: _longer(-1)(old) if old.dim() else None),
    "gaps": Change(_gaps),
    "turned": Change(_turned),
    "shifted": Change(_shifted),
    "expanded first": Change(_expanded(0), aliases=True),
    "expanded last": Change(_expanded(-1), aliases=True),
    "windows": Change(_windows, aliases=True),
    "leaf": Change(lambda old: old.clone().requires_grad_() if old.is_floating_point() else None),
    **{f"holds {value}": Change(_filled(value)) for value in (*NUMBERS, *FLOATS)},
}


def overlapping(old: Tensor, other: Tensor) -> Any:
    """The same memory as another argument, one element later where there is room, as far as the shapes go."""
    if old.dtype != other.dtype or not old.numel() or not other.numel() or other.layout != torch.strided:
        return None
    flat = other.as_strided((other.untyped_storage().nbytes() // other.element_size(),), (1,), 0)
    start = 1 if old.numel() < flat.numel() else 0
    if old.numel() + start > flat.numel():
        return None
    return flat[start : start + old.numel()].view(old.shape)


# ---- everything else ----

JUNK: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "text": lambda: "x",
    "empty list": list,
    "list of numbers": lambda: [1.0, 2.0],
    "list of None": lambda: [None],
    "object": object,
    "1j": lambda: 1j,
    "numpy int": lambda: _numpy().int64(2),
    "numpy float": lambda: _numpy().float32(0.5),
    "numpy array": lambda: _numpy().ones((2, 3), "float32"),
    "tensor of one": lambda: torch.tensor(2.0),
    "tensor of two": lambda: torch.ones(2),
}
EDGES: dict[str, Any] = {
    **{str(value): value for value in (*NUMBERS, 2, 2**63, 10**30)},
    **{str(value): value for value in (*FLOATS, 1.5, 1e308, -1.0)},
}
LIST: dict[str, Change] = {
    "empty": Change(lambda old: type(old)()),
    "shorter": Change(lambda old: old[:-1] if len(old) > 1 else None),
    "twice": Change(lambda old: type(old)((*old, *old)) if old else None, aliases=True),
    "with None": Change(lambda old: type(old)((*old[:-1], None)), must_fail=True),
    "with a number": Change(lambda old: type(old)((*old[:-1], 1.0)), must_fail=True),
}


def _numpy() -> Any:
    import numpy as np

    return np


def of(value: Any, kind: str) -> Iterator[str]:
    """The names of the changes of a value whose type is said to be ``kind``."""
    if isinstance(value, Tensor):
        yield from (f"tensor: {name}" for name in TENSOR)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        yield from (f"list: {name}" for name in LIST)
    elif re.search(r"int|float|Steps", kind) or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield from (f"number: {name}" for name in EDGES)
    yield from (f"junk: {name}" for name in JUNK)


def change(name: str) -> Change:
    """A change by its name."""
    kind, _, name = name.partition(": ")
    if kind == "tensor":
        return TENSOR[name]
    if kind == "list":
        return LIST[name]
    if kind == "number":
        return Change(lambda _: EDGES[name])
    return Change(lambda _: JUNK[name]())
