"""Check folders that libraries are loaded from: only this user may have put files there.

Anyone who can write into the cache, or replace its folder, runs code in every process that uses it. So folders are made
with mode 0700, and :func:`why_not` checks a folder before it is used. :func:`why_not_one` checks files while they are
open. :func:`another` offers a folder in place of one that is full, read-only or unsafe.
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from precast._builder import files
from precast.errors import KernelError

ENOUGH_BYTES = 200_000_000  # all families built here take 60 MB, and as much again during the build
_LINKS = 40  # the kernel's own limit: ELOOP of path_resolution(7)


def private_folder(path: Path) -> Path:
    """Make or check a folder that only this user can enter, in a place where everybody can make folders."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise KernelError(
            "there is not a folder to build in",
            found=f"{path}: {error.strerror or error}",
            needed="a home, or a temp folder that can be written",
            fix=another(path),
        ) from error
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise _unsafe(path, f"owner {facts.st_uid}, mode {stat.filemode(facts.st_mode)}")
    return path


def make_private(path: Path) -> None:
    """Make a folder and its missing parents, for this user alone, whatever the umask."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # noqa: PERF203 - another process was faster; a file in the way is the next step's error
            continue


def require_own(root: Path, entry: Path | None = None) -> None:
    """Refuse a cache that another user could write into or replace: checks its root, and the way to an entry."""
    reason = why_not(root, entry, owner=os.getuid())
    if reason is not None:
        raise _unsafe(root, reason)


def why_not(root: Path, place: Path | None = None, *, owner: int | None) -> str | None:
    """Why it is unsafe to load libraries from a folder; None if it is safe or does not exist yet.

    The folder must belong to ``owner`` (None skips this, as for a cache that an administrator filled), and no other
    user may write into it. The path to it must contain no folder where everybody can rename, and no link of another
    user. The same is checked for ``place``, a folder or a file below it, and for each folder between them.
    """
    deepest = root if place is None else place
    steps = [step for step in reversed(deepest.parents) if step == root or root in step.parents]
    for step in (*steps, deepest):
        absolute = _absolute(step)
        try:
            facts = absolute.stat()
        except (FileNotFoundError, NotADirectoryError):  # it cannot be written either; that error explains it better
            break
        except OSError as error:
            return f"{absolute}: {error.strerror}"
        why = why_not_one(facts, owner=owner)
        if why is not None:
            return f"{absolute}: {why}"
    return _why_not_the_way(_absolute(deepest), _LINKS)


def why_not_one(facts: os.stat_result, *, owner: int | None) -> str | None:
    """Why one file or folder is unsafe by itself: its owner, or its write permissions."""
    if owner is not None and facts.st_uid != owner:
        return f"it belongs to user {facts.st_uid}"
    if facts.st_mode & (0o022 if owner is not None else 0o002):
        return f"others can write it (mode {stat.filemode(facts.st_mode)})"
    return None


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100  # resolve() would follow the very links that are judged


def _why_not_the_way(path: Path, links: int) -> str | None:
    """Check each step from / to ``path``, and the target of each link on the way."""
    for step in (*reversed(path.parents), path):
        try:
            facts = step.lstat()
        except OSError:
            return None  # nothing below exists or can be reached; the caller finds that out
        if stat.S_ISLNK(facts.st_mode):
            if facts.st_uid not in {0, os.getuid()}:
                return f"{step}: a link of user {facts.st_uid}"
            if links == 0:
                return f"{step}: too many links"
            reason = _why_not_the_way(Path(os.path.abspath(step.parent / step.readlink())), links - 1)  # noqa: PTH100
            if reason is not None:
                return reason
        elif step != path and facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            return f"mode {stat.filemode(facts.st_mode)} of {step}: everybody can exchange what is in it"
    return None


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
            and why_not(place, owner=os.getuid()) is None
        )
    except OSError:
        return False
