"""One builder at a time: a lock between the threads of a process, and flock between the processes of a machine.

The lock only saves work. Builds are safe because each has its own staging folder and appears in one step (``cache``).
So no problem with a lock is ever an error: without one, or after too long a wait, the price is a duplicate build.

flock ends with its holder, so no lock can be stale. Its file is never deleted, because that would split the lock in
two. The file lies in memory of this machine, not in the cache, whose file system may have no locks or may hang when
asked for one.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import itertools
import logging
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from precast._builder import trust
from precast.core import files, owned
from precast.errors import KernelError

LOG = logging.getLogger("precast")
WAIT_S = 1800.0
_POLL_S = 0.05
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_HELD = {errno.EWOULDBLOCK, errno.EACCES, errno.EINTR}


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to build. ``alone`` is false if another process may be building the same thing."""

    alone: bool
    descriptor: int | None

    def tell(self, log: Path) -> None:
        """Tell waiting processes who is building, since when, and where to watch the log."""
        if self.alone and self.descriptor is not None:
            since = time.strftime("%H:%M:%S")
            note = f"process {os.getpid()} on {socket.gethostname()}, since {since}, log {log}\n"
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, os.fsencode(note), 0)


@contextmanager
def exclusive(
    path: Path | None, what: str, *, wait_s: float = WAIT_S, clock: Callable[[], float] = time.monotonic
) -> Iterator[Turn]:
    """Wait for the turn at ``path`` (None: between threads only). After ``wait_s`` it is granted without the lock."""
    started = clock()

    def wait(attempt: Callable[[], bool], holder: Callable[[], str]) -> bool:
        return _wait(attempt, holder, what, started, started + wait_s, clock)

    with _between_threads(str(path or what), wait) as first, _between_processes(path if first else None, wait) as turn:
        yield Turn(first and turn.alone, turn.descriptor)


_Wait = Callable[[Callable[[], bool], Callable[[], str]], bool]


@contextmanager
def _between_threads(name: str, wait: _Wait) -> Iterator[bool]:
    with _held.guard:
        lock = _held.threads.setdefault(name, threading.RLock())
    got = wait(lambda: lock.acquire(timeout=_POLL_S), lambda: "another thread of this process")
    try:
        yield got
    finally:
        if got:
            lock.release()


@contextmanager
def _between_processes(path: Path | None, wait: _Wait) -> Iterator[Turn]:
    descriptor = None if path is None else _open(path)
    if descriptor is None:
        yield Turn(alone=True, descriptor=None)
        return
    got = False
    try:
        got = wait(lambda: _flock(descriptor, path), lambda: _note(descriptor))
        yield Turn(got, descriptor)
    finally:
        _close(descriptor, unlock=got)


def lock_file(root: Path, name: str) -> Path | None:
    """The lock file for one build into one cache on this machine; None if there is no place for it."""
    for folder in _folders():
        try:
            return trust.private_folder(folder) / f"{name}{_suffix(root)}"
        except KernelError as error:  # noqa: PERF203 - the next folder is for this
            LOG.debug("no locks in %s: %s", folder.parent, error)
    return None


def held(root: Path) -> tuple[tuple[str, str], ...]:
    """The builds now running into one cache on this machine, and the note of each builder.

    Creates and writes nothing: it tries each lock as a reader, which blocks a builder only for a moment.
    """
    found = []
    for folder in _folders():
        if owned.why_not(folder, owner=os.getuid()) is None:
            for path in sorted(folder.glob(f"*{_suffix(root)}")):
                note = _note_if_held(path)
                if note is not None:
                    found.append((path.name.removesuffix(_suffix(root)), note))
    return tuple(found)


def _note_if_held(path: Path) -> str | None:
    try:
        descriptor, _ = files.open_regular(path, links=False)
    except OSError as error:
        LOG.debug("%s: %s", path, error.strerror)
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return _note(descriptor) if error.errno in _HELD else None
    else:
        return None
    finally:
        os.close(descriptor)


def _folders() -> tuple[Path, ...]:
    """The folders that may hold locks, the best first. XDG_RUNTIME_DIR differs between a batch job and a login."""
    return tuple(Path(parent) / f"precast-locks-{os.getuid()}" for parent in ("/dev/shm", tempfile.gettempdir()))


def _suffix(root: Path) -> str:
    """A suffix that distinguishes the locks of different caches."""
    return f"-{hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:8]}.lock"


@functools.cache
def this_machine() -> str:
    """A name for one space of process ids: a boot of a kernel and a container in it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return f"{socket.gethostname()}-unknown"
    return f"{socket.gethostname()}-{hashlib.sha256(f'{boot} {namespace}'.encode()).hexdigest()[:8]}"


class _Held:
    """The locks of this process. A forked child starts with none; otherwise it would wait for a thread it lacks.

    The child closes its copies of the descriptors: they share the parent's flock and would keep it after the parent.
    """

    def __init__(self) -> None:
        self.descriptors: set[int] = set()
        self.renew()

    def renew(self) -> None:
        self.guard = threading.Lock()
        self.threads: dict[str, threading.RLock] = {}
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = set()


_held = _Held()
os.register_at_fork(after_in_child=_held.renew)


def _open(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise files.OddFile(path, "not a regular file")
    except OSError as error:
        LOG.warning("%s: %s; building without a lock", path, error.strerror)
        return None
    with _held.guard:
        _held.descriptors.add(descriptor)
    return descriptor


def _close(descriptor: int, *, unlock: bool) -> None:
    with _held.guard:
        if descriptor not in _held.descriptors:  # this is a forked child, which has closed it
            return
        _held.descriptors.remove(descriptor)
    try:
        if unlock:
            os.ftruncate(descriptor, 0)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked meanwhile may still have it open
    except OSError as error:
        LOG.debug("the lock is given up by closing it: %s", error)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, path: Path | None) -> bool:
    """Try once, and pause briefly if the lock is held. Also True if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            time.sleep(_POLL_S)
            return False
        if error.errno not in _WITHOUT_LOCKS:
            raise
        LOG.warning("%s: this file system has no locks (%s); building without", path, error.strerror)
    return True


def _wait(
    attempt: Callable[[], bool],
    holder: Callable[[], str],
    what: str,
    started: float,
    ends: float,
    clock: Callable[[], float],
) -> bool:
    """Try until it works, and report the holder while waiting. False after the time limit."""
    announcements = itertools.chain((5.0, 30.0), itertools.count(60.0, 60.0))
    announce_at = next(announcements)
    while not attempt():
        now = clock()
        if now > ends:
            LOG.warning("%s: waited %.0f s for %s; building it here as well", what, now - started, holder())
            return False
        if now - started > announce_at:
            LOG.warning("%s: waiting for %s, %.0f s so far", what, holder(), now - started)
            announce_at = next(announcements)
    return True


def _note(descriptor: int) -> str:
    note = os.pread(descriptor, 500, 0).decode("utf-8", "replace").strip()
    return note or "a process that has not said who it is"
