"""One content-addressed store for everything that is built, ahead of time or at run time.

``<root>/v1/<name>/<key16>/{payload, meta.json, build.log}``. A key is the digest of what went into a build (contents,
flags, compiler), never of paths or times. An entry is made in a staging folder and appears by one rename, ``meta.json``
last; what has no meta.json, or another content than it says, is damaged, is moved aside and is built again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from precast._abi.settings import Settings
from precast._build import lock
from precast.errors import KernelError

LOG = logging.getLogger("precast")
LAYOUT = "v1"
_META_SCHEMA = 1
_CANNOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST}


@dataclass(frozen=True)
class BuildKey:
    """What a build is made of. ``inputs`` is plain JSON; equal inputs give equal keys on every machine."""

    name: str
    inputs: Mapping[str, Any]

    @cached_property
    def digest(self) -> str:
        """The sha256 of the canonical JSON."""
        text = json.dumps(self.inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.name}/{self.digest[:16]}"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished file of the cache: verified, with what it cost to make (0 seconds when it was there)."""

    path: Path
    sha256: str
    seconds: float
    cached: bool
    key: str


class Cache:
    """The store under one root. Nothing is written before something is built."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entry(self, key: BuildKey) -> Path:
        """The folder of a key, whether it is there or not."""
        return self.root / LAYOUT / key.name / key.digest[:16]

    def lookup(self, key: BuildKey) -> Path | None:
        """The verified payload of a key, or None. Changes nothing: a damaged entry is dealt with by ``obtain``."""
        found = self._verified(key)
        return None if found is None else found[0]

    def obtain(self, key: BuildKey, build: Callable[[Path], Path]) -> Artifact:
        """The payload of a key, built by ``build(staging folder) -> payload inside it`` unless it is there.

        Safe for any number of threads and processes: they wait for the first builder, and where they cannot, each
        publishes or discards its own equal copy.
        """
        found = self._verified(key)
        if found is not None:
            return Artifact(*found, seconds=0.0, cached=True, key=key.digest)
        with _explaining(self.root, str(key)), lock.exclusive(self._lock_file(key), str(key)):
            found = self._verified(key)
            if found is not None:
                return Artifact(*found, seconds=0.0, cached=True, key=key.digest)
            staging = self._stage(key)
            try:
                started = time.perf_counter()
                payload = build(staging)
                return self.publish(key, staging, payload, time.perf_counter() - started)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def publish(self, key: BuildKey, staging: Path, payload: Path, seconds: float) -> Artifact:
        """Make a staged build visible, with its marker written last and on disk before the rename."""
        data = payload.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        meta = {
            "schema": _META_SCHEMA,
            "key": key.digest,
            "payload": payload.name,
            "sha256": sha256,
            "bytes": len(data),
            "seconds": round(seconds, 3),
            "inputs": key.inputs,
        }
        for extra in staging.iterdir():
            if extra.name not in {payload.name, "build.log"}:
                shutil.rmtree(extra) if extra.is_dir() else extra.unlink()
        _flush(payload)
        _write_flushed(staging / "meta.json", json.dumps(meta, indent=1, sort_keys=True) + "\n")
        entry = self.entry(key)
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            staging.rename(entry)
        except OSError:
            there = self._verified(key)
            if there is not None:  # somebody was faster, without a lock between us: theirs is as good
                return Artifact(*there, seconds=seconds, cached=False, key=key.digest)
            self._move_aside(entry)
            staging.rename(entry)
        return Artifact(entry / payload.name, sha256, seconds, cached=False, key=key.digest)

    def store(self, key: BuildKey, file: Path, seconds: float) -> Artifact:
        """Keep a file that was made on the way to something else, under a key of its own."""
        with _explaining(self.root, str(key)):
            staging = self._stage(key)
            try:
                return self.publish(key, staging, Path(shutil.copy(file, staging)), seconds)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def failure_log(self, key: BuildKey) -> Path:
        """Where the log of a failed build stays, as its staging folder goes."""
        folder = self.root / LAYOUT / ".failed"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{key.name}-{key.digest[:16]}.log"

    def _verified(self, key: BuildKey) -> tuple[Path, str] | None:
        """The payload and its digest if the entry is whole; None if it is absent or damaged."""
        entry = self.entry(key)
        try:
            meta = json.loads((entry / "meta.json").read_bytes())
            payload = entry / Path(meta["payload"]).name
            sha256 = hashlib.sha256(payload.read_bytes()).hexdigest()
            whole = meta["schema"] == _META_SCHEMA and meta["key"] == key.digest and meta["sha256"] == sha256
        except (OSError, ValueError, KeyError, TypeError) as error:
            if entry.exists():
                LOG.warning("%s: the cached build cannot be read (%s); it will be made again", entry, error)
            return None
        if not whole:
            LOG.warning("%s: the cached build is not what its meta.json says; it will be made again", entry)
            return None
        return payload, sha256

    def _move_aside(self, entry: Path) -> None:
        """Keep a damaged entry for whoever wants to know why; called with the lock held."""
        damaged = self.root / LAYOUT / ".damaged"
        damaged.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f"{entry.parent.name}-{entry.name}-", dir=damaged))
        try:
            entry.rename(aside / "entry")
        except FileNotFoundError:
            return
        LOG.warning("%s: moved to %s", entry, aside)

    def _stage(self, key: BuildKey) -> Path:
        folder = self.root / LAYOUT / ".staging"
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{key.name}-{os.getpid()}-", dir=folder))

    def _lock_file(self, key: BuildKey) -> Path:
        folder = self.root / LAYOUT / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{key.name}-{key.digest[:16]}.lock"


@contextmanager
def _explaining(root: Path, what: str) -> Iterator[None]:
    """Turn "the cache cannot be written" into the one error that names the folder and the way out."""
    try:
        (root / LAYOUT).mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise KernelError(
            f"{what}: the build cache cannot be written\n"
            f"  found   {error.filename or root}: {error.strerror}\n"
            f"  needed  {root}: a folder this user can write, with space left\n"
            f"  fix     1) PRECAST_CACHE_DIR=/another/folder"
        ) from error


def default_root(settings: Settings) -> Path:
    """Where builds go: PRECAST_CACHE_DIR, else XDG_CACHE_HOME, else ~/.cache, else a private folder in the temp dir.

    What the user named is taken as it is, even if it cannot be written: the error then says so. The others are taken
    only if they can be. Only the last resort makes a folder, because its owner and mode must be proved.
    """
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser().absolute()
    homes = [Path(settings.xdg_cache_home)] if settings.xdg_cache_home else []
    if settings.home:
        homes.append(Path(settings.home) / ".cache")
    for home in homes:
        if home.is_absolute() and _can_hold(home / "precast"):
            return home / "precast"
    fallback = private_folder(Path(tempfile.gettempdir()) / f"precast-{os.getuid()}")
    LOG.warning("builds are kept in %s, as %s", fallback, _why_not(homes))
    return fallback


def private_folder(path: Path) -> Path:
    """Make, or check, a folder that only this user can enter: libraries are loaded from it."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise KernelError(
            f"there is no folder to build in\n"
            f"  found   {path}: {error.strerror or error}\n"
            f"  needed  a home, or a temp folder that can be written\n"
            f"  fix     1) PRECAST_CACHE_DIR=/another/folder"
        ) from error
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise KernelError(
            f"{path} is not safe to load libraries from\n"
            f"  found   owner {facts.st_uid}, mode {stat.filemode(facts.st_mode)}\n"
            f"  needed  a folder of user {os.getuid()} that nobody else can enter\n"
            f"  fix     1) PRECAST_CACHE_DIR=/another/folder"
        )
    return path


def _can_hold(path: Path) -> bool:
    """Whether ``path`` is, or could be made, a folder that this user can write."""
    for folder in (path, *path.parents):
        if folder.exists():
            return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return False


def _why_not(homes: list[Path]) -> str:
    return f"{' and '.join(map(str, homes))} cannot be written" if homes else "neither XDG_CACHE_HOME nor HOME is set"


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write_flushed(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
