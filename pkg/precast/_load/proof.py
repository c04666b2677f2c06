"""Try what a pre-release of torch does, before a kernel relies on it.

Such a torch is a commit from before its release. That it has every function by name does not say that each does what
it does in the release. So two toy ops (csrc/host/prove.cpp) are called once in each process, with every kind of
argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precast._load.library import CannotAttach, HostLibrary
from precast.errors import KernelIncompatible

if TYPE_CHECKING:
    import torch

_SPACE = "precast_proof"
_kept: list[torch.library.Library] = []  # an op lives as long as its library


def prove(library: HostLibrary) -> None:
    """Raise CannotAttach unless the toy ops give the results that they must; only the first call does anything."""
    import torch

    if _kept:
        return
    ops = torch.library.Library(_SPACE, "DEF")
    ops.define("sum(Tensor x, Tensor? y, Tensor[] more, float number, int count, bool negative) -> (Tensor, Tensor)")
    ops.define("refuse(Tensor x) -> int")
    try:
        library.register_proof(_SPACE)
        _try(torch)
    except (KernelIncompatible, RuntimeError) as error:
        raise CannotAttach(f"its functions are all there, but a toy op fails: {str(error).splitlines()[0]}") from error
    _kept.append(ops)


def _try(torch: Any) -> None:
    ops = getattr(torch.ops, _SPACE)
    plain = {"dtype": torch.float32, "device": "cpu"}  # whatever the program's defaults are
    x = torch.arange(7.0, **plain)[1:].as_strided((2, 3), (1, 2))
    y = torch.full((2, 3), 0.5, **plain)
    for other, more, negative in ((None, [], False), (y, [y, y + 1.0], True)):
        wanted = x + 2.25 + 3
        for tensor in (*([] if other is None else [other]), *more):
            wanted = wanted + tensor
        wanted = -wanted if negative else wanted
        rows, like_x = ops.sum(x, other, more, 2.25, 3, negative)
        _require(rows.is_contiguous() and rows.dtype is torch.float32, "the layout of its first result")
        _require(like_x.stride() == x.stride(), "the layout of its second result")
        _require(torch.equal(rows, wanted) and torch.equal(like_x, wanted), "its numbers")
    try:
        ops.refuse(x)
    except RuntimeError as error:
        _require("this op refuses" in str(error), "the text of its error")
    else:
        _require(False, "its error, which was lost")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(f"wrong is {what}")
