"""What may lie where a file is expected: each hangs a careless reader, or takes all of its memory."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HUGE = 64 << 30  # sparse: it takes no space on the disk


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    """A socket; the name outlives it. Its path may be longer than the 108 characters that bind(2) takes."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


def circle(path: Path) -> None:
    path.symlink_to(path.name)


ODD: dict[str, Callable[[Path], None]] = {
    made.__name__: made for made in (fifo, device, listening, folder, sparse, circle)
}


def put(kind: str, path: Path) -> None:
    """Replace a file by an odd one of this kind."""
    path.unlink(missing_ok=True)
    ODD[kind](path)


@contextmanager
def no_hang(seconds: int = 20) -> Iterator[None]:
    """Whoever hangs is interrupted, and fails."""

    def interrupt(*_: object) -> None:
        raise AssertionError(f"it hung for {seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
