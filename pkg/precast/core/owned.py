"""Whether only this user may have put files into a folder: whoever writes there runs code in who reads it.

:func:`why_not` checks a folder before it is used, and :func:`why_not_one` a file while it is open.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_LINKS = 40  # the kernel's own limit: ELOOP of path_resolution(7)


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
