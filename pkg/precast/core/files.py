"""Read files that another user could have put there, and write files that no other user may change.

Opening a FIFO blocks, a device never ends, and a sparse file of gigabytes costs its author nothing. So a file is opened
without blocking, must be a regular file, and has a size limit that is checked before anything is read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

PIECE = 1 << 20
PRIVATE = 0o600
DIGEST = "DIGEST"  # in the csrc of a wheel: the digest of the sources, so that a reader need not hash them

# Windows lacks some of these flags but also imports this module.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}

Judge = Callable[[os.stat_result], str | None]
"""Checks an open file and returns why it must not be used, or None."""


class OddFile(OSError):
    """A file that must not be read; ``strerror`` says why."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))


class WrongSize(OddFile):
    """A file that is larger than its reader allows."""

    def __init__(self, path: Path, size: int, most: int) -> None:
        super().__init__(path, f"{size} bytes, more than {most}")
        self.size = size


def read(path: Path, most: int, *, links: bool = True, judge: Judge | None = None) -> bytes:
    """The content of a regular file of at most ``most`` bytes; :class:`OddFile` or another OSError."""
    return b"".join(_pieces(path, most, links, judge, most))


def digest(path: Path, most: int, *, links: bool = True, judge: Judge | None = None) -> tuple[int, str]:
    """The size and sha256 of such a file, computed with one piece of it in memory at a time."""
    whole, size = hashlib.sha256(), 0
    for piece in _pieces(path, most, links, judge, PIECE):
        whole.update(piece)
        size += len(piece)
    return size, whole.hexdigest()


def open_regular(path: Path, *, links: bool = True) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file, and its status; ``links=False`` refuses a symbolic link."""
    try:
        descriptor = os.open(path, _READ if links else _READ | _NO_LINK)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a forbidden or circular link; a socket
            raise OddFile(path, f"{_kind(path)}, not a regular file") from error
        raise
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        raise OddFile(path, f"{_KINDS.get(stat.S_IFMT(facts.st_mode), 'something else')}, not a regular file")
    return descriptor, facts


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read or write, whatever the umask; its content is on disk afterwards.

    An existing file is removed first, so that a mapped library keeps its bytes.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, _WRITE, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            _take(descriptor)
            os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def make_private(path: Path) -> None:
    """Restrict a file that a compiler or a copy made to its owner, and write it to disk."""
    descriptor, _ = open_regular(path, links=False)
    try:
        _take(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> None:
    facts = os.fstat(descriptor)
    if stat.S_ISREG(facts.st_mode) and stat.S_IMODE(facts.st_mode) != PRIVATE:
        os.fchmod(descriptor, PRIVATE)


def _pieces(path: Path, most: int, links: bool, judge: Judge | None, piece: int) -> Iterator[bytes]:
    """The content of the file at opening time; bytes appended later are left out."""
    descriptor, facts = open_regular(path, links=links)
    try:
        why = None if judge is None else judge(facts)
        if why is not None:
            raise OddFile(path, why)
        if facts.st_size > most:
            raise WrongSize(path, facts.st_size, most)
        left = facts.st_size
        while left > 0:
            content = os.read(descriptor, min(left, piece))
            if not content:  # the file was truncated meanwhile
                break
            left -= len(content)
            yield content
    finally:
        os.close(descriptor)


def _kind(path: Path) -> str:
    try:
        return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "something else")
    except OSError:
        return "something that is gone"


def is_noexec(path: Path) -> bool:
    """Whether the linker may load no library from a file or folder, because its file system is mounted noexec."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False  # whatever opens it explains that better
