"""Which release of torch exports which name, for the names that extensions use: ``torch_names.json``.

The file has a short digest of each name, in groups of names that the same releases have. ``python -m tools
torch-names`` reads the names from PyPI's builds. The names of kernels and of torch's own internals are left out.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from precast.core.value import value
from precast.core.version import Release

PATH = Path(__file__).with_name("torch_names.json")
DIGEST_BYTES = 3  # one in 1,200 unknown names is taken for a known one

# The C functions of the stable ABI, and Python's side of torch.
SHIM = re.compile(r"(?:aoti_torch|torch)_\w+")
_NESTED = re.compile(r"_Z(?:T[VIST]|GV|Th[\dn]+_)?N[KVrRO]*(?:2at|3c10|5torch)(?!6stable|10headeronly)(?=\d|[A-Z])")
_INTERNAL = re.compile(
    r"N[KVrRO]*(?:2at(?:6native|4meta|3cpu|9functorch|17functionalization|14namedinference|9composite|\d\dcomposite|"
    r"6sparse|4_ops\d+\w*?10redispatch)|3c10(?:10Dispatcher\d|4impl8OperatorE)|"
    r"5torch(?:3jit|2nn|4lazy|5optim|11distributed|8inductor|8profiler|4data|8autograd9generated))"
)
# Names of builds for other GPUs, which are not on PyPI.
_OTHER = re.compile(r"N[KVrRO]*(?:2at|3c10|5torch)(?:3xpu|3hip)(?=\d|[A-Z])|XPU|HIP")
_PYTHON = re.compile(r"_Z\d+THP\w+|THP\w+")
STRING = re.compile(r"__cxx11|Ss(?![a-z])")


@value(frozen=True)
class Torch:
    """One recorded release: the C++ ABI of its build, and its bit in the masks of the table."""

    release: Release
    cxx11: bool
    bit: int


def is_recorded(name: str) -> bool:
    """Whether a name that a library needs is of the kind that the table has."""
    if SHIM.fullmatch(name) or _PYTHON.match(name):
        return True
    return _NESTED.match(name) is not None and _INTERNAL.search(name) is None and _OTHER.search(name) is None


def digest(name: str) -> bytes:
    """The short digest that stands for a name."""
    return hashlib.sha256(name.encode()).digest()[:DIGEST_BYTES]


def missing(names: Iterable[str], *, cxx11: bool | None) -> dict[Release, tuple[str, ...]]:
    """For each recorded release, oldest first, the names that it does not export; empty for a release that has all.

    ``cxx11`` is the C++ ABI of the library. Names with a ``std::string`` cannot be judged for a release whose recorded
    build has the other ABI.
    """
    known, releases = _table()
    masks = {name: known.get(digest(name), 0) for name in sorted(set(names)) if is_recorded(name)}
    return {
        torch.release: tuple(
            name
            for name, mask in masks.items()
            if not mask & torch.bit and (cxx11 in (None, torch.cxx11) or not STRING.search(name))
        )
        for torch in releases
    }


def recorded() -> tuple[Torch, ...]:
    """The releases of the table, oldest first."""
    return _table()[1]


def to_json(names: Mapping[Release, Iterable[str]], cxx11: Mapping[Release, bool]) -> str:
    """The text of the table for these releases."""
    masks: dict[bytes, int] = {}
    for index, release in enumerate(sorted(names)):
        for name in filter(is_recorded, names[release]):
            masks[digest(name)] = masks.get(digest(name), 0) | 1 << index
    groups: dict[int, list[bytes]] = {}
    for short in sorted(masks):
        groups.setdefault(masks[short], []).append(short)
    document = {
        "releases": {str(release): int(cxx11[release]) for release in sorted(names)},
        "groups": {f"{mask:x}": base64.b64encode(b"".join(some)).decode() for mask, some in sorted(groups.items())},
    }
    return json.dumps(document, indent=0) + "\n"


@functools.cache
def _table() -> tuple[dict[bytes, int], tuple[Torch, ...]]:
    document = json.loads(PATH.read_text(encoding="utf-8"))
    known = {}
    for mask, text in document["groups"].items():
        joined = base64.b64decode(text)
        for at in range(0, len(joined), DIGEST_BYTES):
            known[joined[at : at + DIGEST_BYTES]] = int(mask, 16)
    releases = (
        Torch(Release.parse(release), bool(cxx11), 1 << index)
        for index, (release, cxx11) in enumerate(document["releases"].items())
    )
    return known, tuple(releases)
