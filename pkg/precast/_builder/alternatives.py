"""Which libraries of a wheel stand for each other, so that one of them is enough.

A guard of precast.build chooses between those of its manifest. Other wheels have a library for each torch, CUDA, GPU or
Python, and their own Python code opens one: ``torch-2.10/lib/libops.so``, ``hook_cu12.abi3.so``, ``sm90/ops.abi3.so``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from precast._builder.xray import Contents, Library
from precast.core.value import value

_VERSIONS = (
    r"(?:py)?torch[-_.]?\d+(?:[._]\d+)*|pt[-_.]?\d+(?:[._]\d+)*|cu(?:da)?[-_.]?\d+(?:\.\d+)*"
    r"|(?:sm|compute)[-_]?\d+[af]?|cpython-3\d+t?(?:-[\w-]+)?|cp3\d+t?"
)
_KINDS = r"cpu|cuda|gpu|rocm[-_.]?\d*(?:\.\d+)*|hip[-_.]?\d*|xpu\d*|abi3(?:-[\w-]+)?"
# The parts of a path that say what a library is for, with the mark before them.
_VERSION, _ANYTHING = (
    re.compile(rf"[-_.]?(?<![a-z0-9])(?:{parts})(?![a-z0-9])", re.IGNORECASE)
    for parts in (_VERSIONS, f"{_VERSIONS}|{_KINDS}")
)
_ALIKE = 0.75  # of the names that the smaller of two libraries defines


@value(frozen=True)
class Group:
    """Libraries of which a process opens one; ``why`` says what shows that."""

    libraries: tuple[Library, ...]
    why: str


def groups(contents: Contents) -> tuple[Group, ...]:
    """The libraries of a wheel that can be judged, each in one group, in the order of their paths.

    An adapter of precast's own and a library that a manifest only lists for others are judged with their library.
    """
    guarded: dict[tuple[str, tuple[str, ...]], list[Library]] = {}
    for one in contents.libraries:
        if one.listed is not None and one.listed.families:
            guarded.setdefault((one.path.rpartition("/")[0], one.listed.families), []).append(one)
    found = [Group(tuple(some), "a guard chooses between them") for some in guarded.values()]
    found += _unguarded([one for one in contents.libraries if one.listed is None])
    return tuple(sorted(found, key=lambda group: group.libraries[0].path))


def _unguarded(libraries: list[Library]) -> Iterator[Group]:
    by_key: dict[str, list[Library]] = {}
    for one in libraries:
        by_key.setdefault(_ANYTHING.sub("", one.path), []).append(one)
    for left in by_key.values():
        while left:
            first, *others = left
            alike = {one.path: why for one in others if (why := _stand_for_each_other(first, one))}
            yield Group((first, *(one for one in others if one.path in alike)), next(iter(alike.values()), ""))
            left = [one for one in others if one.path not in alike]


def _stand_for_each_other(one: Library, other: Library) -> str:
    """What shows that one of two libraries is enough, whose paths differ only in what they are for; else nothing."""
    versions = [_VERSION.findall(each.path) for each in (one, other)]
    if all(versions) and _VERSION.sub("", one.path) == _VERSION.sub("", other.path):
        return "their paths differ only in versions"
    ours, theirs = _defined(one), _defined(other)
    if len(ours & theirs) >= _ALIKE * max(1, min(len(ours), len(theirs))):
        return "their paths differ only in what they are for, and they define the same names"
    return ""


def _defined(library: Library) -> set[str]:
    return {"PyInit" if name.startswith("PyInit_") else name for name in library.info.exported}
