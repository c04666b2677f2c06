"""Maintain the build cache: list and check its entries, choose and remove old ones, and compare builds.

``cache`` makes entries; this module only reads and removes them. An entry is removed by one rename, so a process that
looks for it at that moment sees all of it or nothing. A mapped library stays mapped.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast._builder.cache import LAYOUT, BuildKey
from precast._builder.entry import META, NotWhole, check_payload, read_meta
from precast.core import owned

OBJECTS = "objects"
ABANDONED_AFTER_S = 24 * 3600.0  # no build takes a day; a younger staging folder may be in use by another host
_FOLDER = re.compile(r"[0-9a-f]{16}")
_STAGING, _DAMAGED, _FAILED = ".staging", ".damaged", ".failed"


@dataclass(frozen=True, slots=True)
class Entry:
    """One build in the cache. ``problem`` says why it would not be used; None if it is undamaged."""

    name: str
    folder: Path
    payload: Path | None
    inputs: Mapping[str, Any]
    bytes: int
    seconds: float
    made: float  # seconds since 1970
    problem: str | None

    @property
    def label(self) -> str:
        """``rms_norm/0123456789abcdef``, the name in messages."""
        return f"{self.name}/{self.folder.name}"

    @property
    def what(self) -> str:
        """What it was built for, in two words."""
        kind = str(self.inputs.get("kind", "unknown"))
        return f"{kind} {self.inputs.get('target') or self.inputs.get('abi') or self.inputs.get('name') or ''}".strip()


@dataclass(frozen=True, slots=True)
class Removal:
    """One thing to remove, the bytes it frees, and why it may go."""

    path: Path
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One input in which two builds differ; None on a side that lacks the input."""

    field: str
    needed: str | None
    found: str | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for :func:`plan_prune`: entries older than ``older_than`` go, and at most ``most_bytes`` remain."""

    older_than: float | None = None
    most_bytes: int | None = None
    everything: bool = False


def read_entries(root: Path, *, names: Iterable[str] = ()) -> tuple[Entry, ...]:
    """Every entry under a root, checked against its meta.json and hash; only those of ``names`` if any are given."""
    wanted = set(names)
    found = []
    for folder in _folders(root):
        if not wanted or folder.parent.name in wanted:
            found.append(read_entry(folder))
    return tuple(found)


def usage(root: Path) -> tuple[int, int]:
    """The number of entries and the bytes of all that builds have left. Quick, because it reads no file."""
    return sum(1 for _ in _folders(root)), _size(root / LAYOUT) if (root / LAYOUT).is_dir() else 0


def read_entry(folder: Path) -> Entry:
    """One entry; ``problem`` says why it could not be loaded, if so."""
    name, owner = folder.parent.name, os.getuid()
    made, size = _made(folder), _size(folder)
    try:
        meta = read_meta(folder, owner=owner)
    except NotWhole as error:
        return Entry(name, folder, None, {}, size, 0.0, made, str(error))
    problem = None
    try:
        made = (folder / META).lstat().st_mtime
        check_payload(folder, meta, owner=owner)
    except (NotWhole, OSError) as error:
        problem = str(error)
    if folder.name != meta.key[:16]:
        problem = f"{META} is that of {meta.key[:16]}"
    return Entry(name, folder, folder / meta.payload, meta.inputs, size, meta.seconds, made, problem)


def plan_prune(root: Path, limits: Limits, now: float) -> tuple[Removal, ...]:
    """The removals under these limits; damaged entries and leftovers of builds are always included. Removes nothing."""
    removals = [*_leftovers(root, now, everything=limits.everything)]
    kept = []
    for entry in read_entries(root):
        if limits.everything:
            removals.append(Removal(entry.folder, entry.bytes, "everything goes"))
        elif entry.problem is not None:
            removals.append(Removal(entry.folder, entry.bytes, f"damaged: {entry.problem}"))
        elif limits.older_than is not None and entry.made < limits.older_than:
            removals.append(Removal(entry.folder, entry.bytes, f"made {(now - entry.made) / 86400:.1f} days ago"))
        else:
            kept.append(entry)
    if limits.most_bytes is not None:
        total = sum(entry.bytes for entry in kept)
        for entry in sorted(kept, key=lambda entry: entry.made):
            if total <= limits.most_bytes:
                break
            total -= entry.bytes
            removals.append(Removal(entry.folder, entry.bytes, "the oldest of more than fits"))
    return tuple(removals)


def remove(root: Path, removals: Iterable[Removal]) -> int:
    """Remove what was planned and return the bytes freed. Things that another process has removed are skipped."""
    freed = 0
    for removal in removals:
        if removal.path.is_file() and not removal.path.is_symlink():
            removal.path.unlink(missing_ok=True)
            freed += removal.bytes
            continue
        staging = root / LAYOUT / _STAGING
        owned.make_private(staging)
        aside = Path(tempfile.mkdtemp(prefix="removed-", dir=staging))
        try:
            removal.path.rename(aside / "entry")
        except FileNotFoundError:
            aside.rmdir()
            continue
        shutil.rmtree(aside)
        freed += removal.bytes
    return freed


def nearest(root: Path, key: BuildKey) -> tuple[Entry, tuple[Difference, ...]] | None:
    """The undamaged entry of the same kind and name that differs least from a key, with the differences; or None."""
    best: tuple[Entry, tuple[Difference, ...]] | None = None
    for entry in read_entries(root, names=[key.name]):
        if entry.problem is None and entry.inputs.get("kind") == key.inputs.get("kind"):
            found = differences(key.inputs, entry.inputs)
            if best is None or len(found) < len(best[1]):
                best = entry, found
    return best


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The inputs in which two keys differ, each by its path, such as ``sources/csrc/norm/rms_norm.cpp``.

    For two lists, such as a compiler's options, only the items missing from the other list are shown.
    """
    one, other = dict(_flat(wanted)), dict(_flat(found))
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return tuple(Difference(name, *_apart(one.get(name), other.get(name))) for name in names)


def _flat(inputs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in inputs.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, list(value) if isinstance(value, list | tuple) else value


def _apart(one: Any, other: Any) -> tuple[str | None, str | None]:
    if not isinstance(one, list) or not isinstance(other, list):
        return _in_one_line(one), _in_one_line(other)
    only = [word for word in one if word not in other], [word for word in other if word not in one]
    if not any(only):
        return _in_one_line(one), f"the same in another order or number: {_in_one_line(other)}"
    return _in_one_line(only[0] or None), _in_one_line(only[1] or None)


def _in_one_line(value: Any) -> str | None:
    if value is None:
        return None
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _folders(root: Path) -> Iterator[Path]:
    layout = root / LAYOUT
    if not layout.is_dir():
        return
    for group in sorted(layout.iterdir()):
        if group.is_dir() and not group.is_symlink() and not group.name.startswith("."):
            yield from sorted(folder for folder in group.iterdir() if _FOLDER.fullmatch(folder.name))


def _leftovers(root: Path, now: float, *, everything: bool) -> Iterator[Removal]:
    """The remains of failed builds. Lock files stay, because a builder may hold one."""
    for name, why in ((_DAMAGED, "a damaged entry, moved aside"), (_FAILED, "the log of a failed build")):
        for path in sorted((root / LAYOUT / name).glob("*")):
            if everything or now - path.lstat().st_mtime > ABANDONED_AFTER_S:
                yield Removal(path, _size(path), why)
    for path in sorted((root / LAYOUT / _STAGING).glob("*")):
        if now - path.lstat().st_mtime > ABANDONED_AFTER_S:
            yield Removal(path, _size(path), "a build that nobody finished")


def _size(path: Path) -> int:
    """The bytes of a file, or of all files below a folder; files that vanish meanwhile count as empty."""
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(folder, name).lstat().st_size
    return total


def _made(folder: Path) -> float:
    return folder.lstat().st_mtime
