"""Suggest another folder for builds if the current one is full, read-only or unsafe. The suggestion was tested."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from precast._builder import trust

ENOUGH_BYTES = 200_000_000  # all families built here take 60 MB, and as much again during the build


def setting(taken: Path, variable: str = "PRECAST_CACHE_DIR") -> str:
    """The command that moves builds to another folder."""
    folder = next((str(place) for place in _places() if _serves(place, taken)), None)
    return f"export {variable}={'$(mktemp -d)' if folder is None else shlex.quote(folder)}"


def _places() -> Iterator[Path]:
    own = f"precast-{os.getuid()}"
    yield Path(os.path.expanduser("~/.cache/precast"))  # noqa: PTH111 - expanduser of pathlib raises RuntimeError
    yield from (Path(folder) / own for folder in ("/var/tmp", tempfile.gettempdir(), "/dev/shm"))


def _serves(place: Path, taken: Path) -> bool:
    """Whether builds can be kept in a folder: it is safe, writable and has room."""
    if not place.is_absolute() or place == taken or taken in place.parents or place in taken.parents:
        return False
    try:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        room = os.statvfs(there)
        return (
            there.is_dir()
            and os.access(there, os.W_OK | os.X_OK)
            and room.f_bavail * room.f_frsize >= ENOUGH_BYTES
            and trust.why_not(place, owner=os.getuid()) is None
        )
    except OSError:
        return False
