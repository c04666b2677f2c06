"""Catch implementations without an op: a misspelt ``m.impl("wav")`` fails when its library is loaded, not when called.

torch lets a library register an implementation before its schema is defined, because the schema may come later from
Python. So a name is refused only if its namespace has an op with a similar name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precast._load import near
from precast.errors import KernelIncompatible

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
    meant = near.near_miss(name, sorted(names - waiting))
    if meant is not None:
        raise KernelIncompatible(near.refusal(op, meant, place, str(path)))


def _dangling() -> dict[str, str]:
    """The ops that have an implementation but no schema, each with the source line of its first registration."""
    import torch

    found = {}
    for text in torch._C._dispatch_find_dangling_impls():
        name, place = _NAME.search(text), _PLACE.search(text)
        if name is not None:
            found[name[1]] = place[1] if place else "a place that torch does not know"
    return found
