"""Why the dynamic linker did not open an intact file: a file system without execution, a policy, or no memory.

The linker gives one text for all of them, without an error number, in the language of the locale. So this module asks
the kernel: the mount of the file, and a mapping like the linker's own.
"""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

from . import files
from .reasons import Reason, Rejection

# The end of the linker's message if a part of a file could not be mapped (glibc's elf/dl-map-segments.h).
_NOT_MAPPED = ("failed to map segment", "cannot map zero-fill pages", "cannot create shared object descriptor")


def noexec(path: Path) -> Rejection:
    """The reason for a file, or a folder, on a file system that is mounted noexec."""
    mount = next(place for place in (path.absolute(), *path.absolute().parents) if place.is_mount())
    found = f"{mount} is mounted noexec, which forbids to load code from it"
    return Rejection(
        Reason.UNOPENED, "a file system without noexec", found, fix=f"mount -o remount,exec {shlex.quote(str(mount))}"
    )


def why(path: Path, said: str) -> Rejection | None:
    """The reason that lies in this machine; None if the linker's own text ``said`` must do."""
    if files.is_noexec(path):
        return noexec(path)
    number = _mapping_fails(path)
    if number is None and any(text in said for text in (*_NOT_MAPPED, os.strerror(errno.ENOMEM))):
        number = errno.ENOMEM  # the file alone can be mapped, but not all that comes with it
    if number == errno.ENOMEM:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        limited = limit != resource.RLIM_INFINITY
        found = (
            f"no memory to map it, under a limit of {limit >> 20} MiB (ulimit -v)" if limited else "no memory to map it"
        )
        return Rejection(
            Reason.UNOPENED,
            "memory for the library",
            found,
            fix="ulimit -v unlimited  # then start again" if limited else "free memory, and start again",
            passing=True,
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return Rejection(
            Reason.UNOPENED,
            "a free file descriptor",
            os.strerror(number),
            fix="ulimit -n 4096  # then start again",
            passing=True,
        )
    if number in (errno.EACCES, errno.EPERM):
        return Rejection(
            Reason.UNOPENED, "a policy that lets this process load code", f"{os.strerror(number)}, from the kernel"
        )
    return None


def _mapping_fails(path: Path) -> int | None:
    """The error number of a mapping like the linker's, or None if it can be made."""
    import mmap

    try:
        with path.open("rb") as file:
            mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError as error:
        return error.errno
    except ValueError:  # an empty file
        return None
    return None
