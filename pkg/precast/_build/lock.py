"""One builder at a time: flock on a file that is never deleted. It dies with its holder, so nothing can be stale.

The lock only saves work. What makes a build safe is the staging folder and the atomic rename in ``cache``; on a file
system without flock the price is a duplicate compile.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from precast.errors import BuildTimeout

LOG = logging.getLogger("precast")
WAIT_S = 1800.0
_POLL_S = 0.05
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@contextmanager
def exclusive(
    path: Path, what: str, *, wait_s: float = WAIT_S, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Hold the lock of ``path`` (made if it is not there); waiting is announced, and ends in BuildTimeout."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if _acquire(descriptor, path, what, wait_s, clock):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}, {what}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # releases the lock


def _acquire(descriptor: int, path: Path, what: str, wait_s: float, clock: Callable[[], float]) -> bool:
    """Wait for the lock; False where the file system has none."""
    started = clock()
    announcements = iter((5.0, 30.0, *(60.0 * minute for minute in range(1, 10_000))))
    announce_at = next(announcements)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _WITHOUT_LOCKS:
                LOG.warning("%s: this file system has no locks (%s); building without", path, error.strerror)
                return False
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES, errno.EINTR}:
                raise
        else:
            return True
        waited = clock() - started
        if waited > wait_s:
            raise BuildTimeout(
                f"{what}: waited {waited:.0f} s for another process to build it\n"
                f"  found   {path} held by {_holder(descriptor)}\n"
                f"  needed  its end within {wait_s:.0f} s\n"
                f"  fix     1) end that process, and try again"
            )
        if waited > announce_at:
            LOG.warning("%s: waiting for %s, %.0f s so far", what, _holder(descriptor), waited)
            announce_at = next(announcements)
        time.sleep(_POLL_S)


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 500, 0).decode("utf-8", "replace").strip() or "a process that has not said who it is"
