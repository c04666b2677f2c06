"""Read a manifest and the files that it describes, and open them: none before it is known to be what was built.

A manifest is parsed once per process, and again if another one takes its place. A large library is hashed once per
installation: its identity (device, inode, size, both times) and the result are kept in the user's cache. A cache that
another user could write to is not believed, and without a cache the library is hashed in each process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
from pathlib import Path

from . import files
from .manifest import MAX_MANIFEST_BYTES, BuildInfo, DeviceFile, HostFile, ManifestError

MANIFEST = "build_info.json"
LARGE_BYTES = 8 << 20  # hashing this takes 5 ms, ten times as long as to read what was found before
_NOTES = "proved"
_MOST_BYTES = 4096  # of a note


class Damaged(Exception):
    """A file does not match the manifest; the text says how it differs."""


class BadManifest(Exception):
    """A manifest that cannot be used; the text is its path and what is wrong, the cause may be a ManifestError."""


class CannotOpen(Exception):
    """The dynamic linker refused a file; the text is the linker's message."""


def manifest(folder: Path) -> BuildInfo | None:
    """The manifest in a folder, None if there is none; raises BadManifest."""
    try:
        identity = _identity((folder / MANIFEST).stat())
    except OSError:
        return read_manifest(folder)  # says what is wrong
    return _parsed(folder, identity)


@functools.lru_cache(maxsize=64)
def _parsed(folder: Path, identity: str) -> BuildInfo | None:
    return read_manifest(folder)


def read_manifest(folder: Path) -> BuildInfo | None:
    """:func:`manifest`, read anew."""
    path = folder / MANIFEST
    try:
        return BuildInfo.from_json(files.read(path, MAX_MANIFEST_BYTES).decode())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadManifest(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, ManifestError) as error:
        raise BadManifest(f"{path}: {error}") from error


def content(file: HostFile | DeviceFile, folder: Path) -> bytes:
    """The bytes of a listed file, read once, of the right size and hash. Raises Damaged."""
    try:
        found = files.read(folder / file.path, file.bytes)
    except FileNotFoundError:
        raise Damaged("missing") from None
    except files.WrongSize as error:
        raise Damaged(f"it has {error.size} bytes instead of {file.bytes}") from error
    except OSError as error:
        raise Damaged(f"unreadable: {error.strerror or error}") from error
    if len(found) != file.bytes:
        raise Damaged(f"it has {len(found)} bytes instead of {file.bytes}")
    if hashlib.sha256(found).hexdigest() != file.sha256:
        raise Damaged("checksum mismatch")
    return found


def exports(file: HostFile, folder: Path, name: str) -> bool:
    """Whether a library, which is the one that the manifest lists, exports a function. Damaged if it is another one."""
    if file.bytes < LARGE_BYTES:
        return _has(content(file, folder), name)
    from . import owned  # few libraries are large

    path = folder / file.path
    root = _cache()
    known = root / _NOTES / hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    with contextlib.suppress(OSError):  # an unreadable note is no note
        here = f"{file.sha256} {name} {_identity(path.stat())}"
        if owned.why_not(root, known.parent, owner=os.getuid()) is None:
            judge = functools.partial(owned.why_not_one, owner=os.getuid())
            said = files.read(known, _MOST_BYTES, links=False, judge=judge).decode("ascii", "replace")
            before, _, answer = said.rpartition(" ")
            if before == here and answer in ("yes", "no"):
                return answer == "yes"
    identity = _identity(path.stat()) if path.exists() else ""
    found = _has(content(file, folder), name)
    with contextlib.suppress(OSError):  # a cache that is full or read-only costs time alone
        owned.make_private(known.parent)
        files.write_private(known, f"{file.sha256} {name} {identity} {'yes' if found else 'no'}".encode())
    return found


def opened(path: Path, *, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """A library, mapped by the dynamic linker. CannotOpen if it refuses."""
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        raise CannotOpen(str(error)) from error


def _cache() -> Path:
    """The folder in which precast keeps what it builds, as far as it needs no look at the disk."""
    given, home = os.environ.get("PRECAST_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given)
    folder = Path(home) if home and Path(home).is_absolute() else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111
    return folder / "precast"


def _has(found: bytes, name: str) -> bool:
    """Whether the ELF string table has a name, which stands between two NUL bytes there."""
    return f"\0{name}\0".encode() in found


def _identity(facts: os.stat_result) -> str:
    return f"{facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"
