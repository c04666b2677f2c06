"""Check folders that libraries are loaded from: only this user may have put files there.

Anyone who can write into the cache, or replace its folder, runs code in every process that uses it. So folders are made
with mode 0700, and :func:`precast.core.owned.why_not` checks a folder before it is used. :func:`another` offers a
folder in place of one that is full, read-only or unsafe.
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from precast.core import files, owned
from precast.errors import KernelError

ENOUGH_BYTES = 200_000_000  # all families built here take 60 MB, and as much again during the build


def private_folder(path: Path) -> Path:
    """Make or check a folder that only this user can enter, in a place where everybody can make folders."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise KernelError(
            "cannot create a folder to build in",
            found=f"{path}: {error.strerror or error}",
            needed="a writable home or temporary folder",
            fix=another(path),
        ) from error
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise _unsafe(path, f"owner {facts.st_uid}, mode {stat.filemode(facts.st_mode)}")
    return path


def require_own(root: Path, entry: Path | None = None) -> None:
    """Refuse a cache that another user could write into or replace: checks its root, and the way to an entry."""
    reason = owned.why_not(root, entry, owner=os.getuid())
    if reason is not None:
        raise _unsafe(root, reason)


def _unsafe(path: Path, found: str) -> KernelError:
    fixes = [another(path)]
    if found.startswith(f"{path}: others can write it"):
        fixes.insert(0, f"chmod go-w {shlex.quote(str(path))}")
    return KernelError(
        f"{path} is not safe to load libraries from",
        found=found,
        needed=f"a folder of user {os.getuid()} that nobody else can write or exchange",
        fix=fixes,
    )


def another(taken: Path, variable: str = "PRECAST_CACHE_DIR") -> str:
    """The command that moves builds to another folder, which was tested."""
    folder = next((str(place) for place in _places() if _serves(place, taken)), None)
    return f"export {variable}={'$(mktemp -d)' if folder is None else shlex.quote(folder)}"


def _places() -> Iterator[Path]:
    own = f"precast-{os.getuid()}"
    yield Path(os.path.expanduser("~/.cache/precast"))  # noqa: PTH111 - expanduser of pathlib raises RuntimeError
    yield from (Path(folder) / own for folder in ("/var/tmp", tempfile.gettempdir(), "/dev/shm"))


def _serves(place: Path, taken: Path) -> bool:
    """Whether builds can be kept in a folder and loaded from it: it is safe, writable, has room and is not noexec."""
    if not place.is_absolute() or place == taken or taken in place.parents or place in taken.parents:
        return False
    try:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        room = os.statvfs(there)
        return (
            there.is_dir()
            and os.access(there, os.W_OK | os.X_OK)
            and room.f_bavail * room.f_frsize >= ENOUGH_BYTES
            and not files.is_noexec(there)
            and owned.why_not(place, owner=os.getuid()) is None
        )
    except OSError:
        return False
