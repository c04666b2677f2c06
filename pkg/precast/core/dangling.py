"""Catch implementations without an op: a misspelt ``m.impl("wav")`` fails when its library is loaded, not when called.

torch lets a library register an implementation before its schema is defined, because the schema may come later from
Python. So a name is refused only if its namespace has an op with a similar name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import KernelIncompatible, block

_LIKE = 0.7  # ratio of difflib: 0.86 for "wav" and "wave", 0.53 for "scale" and "scale_backward"
_NAME = re.compile(r"^name: (\S+)$", re.MULTILINE)
_PLACE = re.compile(r"registered at (.+?:\d+) ::")


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Raise KernelIncompatible if the library loaded in this context registers kernels for an undefined op."""
    known = _dangling()
    yield
    for name, place in _dangling().items():
        if name not in known:
            _judge(name, place, path)


def _judge(op: str, place: str, path: Path) -> None:
    import torch

    namespace, _, name = op.partition(".")[0].partition("::")
    every = (known.partition(".")[0] for known in torch._C._dispatch_get_all_op_names() if known != op)
    names = {known.partition("::")[2] for known in every if known.startswith(f"{namespace}::")}
    waiting = {other.partition(".")[0].partition("::")[2] for other in _dangling()}
    meant = near_miss(name, sorted(names - waiting))
    if meant is not None:
        raise KernelIncompatible(refusal(op, meant, place, str(path)))


def _dangling() -> dict[str, str]:
    """The ops that have an implementation but no schema, each with the source line of its first registration."""
    import torch

    found = {}
    for text in torch._C._dispatch_find_dangling_impls():
        name, place = _NAME.search(text), _PLACE.search(text)
        if name is not None:
            found[name[1]] = place[1] if place else "a place that torch does not know"
    return found


def near_miss(name: str, defined: Iterable[str]) -> str | None:
    """The op that was probably meant. ``wave`` and its in-place form ``wave_`` are two ops, not a mistake."""
    import difflib  # needed only for an error

    others = [other for other in defined if other.rstrip("_") != name.rstrip("_")]
    return next(iter(difflib.get_close_matches(name, others, n=1, cutoff=_LIKE)), None)


def refusal(op: str, meant: str, place: str, library: str) -> str:
    """The text of the error; ``place`` is the source line of the registration."""
    namespace, _, name = op.rpartition("::")
    return block(
        f"there is no op {op}, but {library} implements it",
        found=f'm.impl("{name}", ...) at {place}; {namespace}::{meant} is defined',
        needed="the name of a schema that is defined before the library is loaded",
        fix=f'write m.impl("{meant}", ...), or define a schema for {name}',
    )
