"""What another package's files were found to be, kept so that nine guards read one manifest and no library twice.

A manifest is parsed once per process, and again if the file is another one. A large library is hashed once per
installation: its identity (device, inode, size, both times) and the result are kept in the build cache. A cache that
another user could write to is not believed, and without a cache the library is hashed in each process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path

from precast._abi.build_info import BuildInfo, HostFile
from precast._abi.settings import Settings
from precast._builder import files
from precast._load import prebuilt

LARGE_BYTES = 8 << 20  # hashing this takes 5 ms, ten times as long as to read what was found before
_FOLDER = "proved"
_MOST_BYTES = 4096


def manifest(folder: Path) -> BuildInfo | None:
    """The manifest in a folder; raises as :func:`precast._load.prebuilt.load_build_info`."""
    try:
        identity = _identity((folder / prebuilt.MANIFEST).stat())
    except OSError:
        return prebuilt.load_build_info(folder)  # says what is wrong
    return _parsed(folder, identity)


def exports(file: HostFile, folder: Path, name: str, settings: Settings) -> bool:
    """Whether a library, which is the one that the manifest lists, exports a function. Damaged if it is another one."""
    if file.bytes < LARGE_BYTES:
        return _has(prebuilt.verified_bytes(file, folder), name)
    from precast._builder import cache, trust

    path = folder / file.path
    root = cache.default_root(settings)
    known = root / _FOLDER / hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    with contextlib.suppress(OSError):  # an unreadable note is no note
        here = f"{file.sha256} {name} {_identity(path.stat())}"
        if trust.why_not(root, known.parent, owner=os.getuid()) is None:
            judge = functools.partial(trust.why_not_one, owner=os.getuid())
            said = files.read(known, _MOST_BYTES, links=False, judge=judge).decode("ascii", "replace")
            before, _, answer = said.rpartition(" ")
            if before == here and answer in ("yes", "no"):
                return answer == "yes"
    identity = _identity(path.stat()) if path.exists() else ""
    found = _has(prebuilt.verified_bytes(file, folder), name)
    with contextlib.suppress(OSError):  # a cache that is full or read-only costs time alone
        trust.make_private(known.parent)
        files.write_private(known, f"{file.sha256} {name} {identity} {'yes' if found else 'no'}".encode())
    return found


def _has(content: bytes, name: str) -> bool:
    """Whether the ELF string table has a name, which stands between two NUL bytes there."""
    return f"\0{name}\0".encode() in content


def _identity(facts: os.stat_result) -> str:
    return f"{facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"


@functools.lru_cache(maxsize=64)
def _parsed(folder: Path, identity: str) -> BuildInfo | None:
    return prebuilt.load_build_info(folder)
