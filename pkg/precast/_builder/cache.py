"""One content-addressed store for everything that is built, ahead of time or at run time.

``<root>/v1/<name>/<key16>/{payload, meta.json, build.log}``. A key is the digest of what went into a build (contents,
flags, compiler), never of paths or times. An entry is made in a staging folder and appears by one rename, ``meta.json``
last; what has no meta.json, or another content than it says, is damaged, is moved aside and is built again.

Nothing here trusts the file system further than that. Locks may not exclude, a rename may fail, times may lie, and what
another machine has made may show up late (NFS does all four): whoever cannot see an entry after publishing it keeps the
bytes that it has just made. No time of any file is ever read.
"""

from __future__ import annotations

import atexit
import errno
import functools
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import elsewhere, files, lock, trust
from precast._builder.entry import LOG_NAME, META, BuildKey, Meta, NotWhole, verify
from precast._builder.roots import default_root, search_path
from precast.errors import KernelError

__all__ = ["LAYOUT", "Artifact", "BuildKey", "Cache", "default_root", "open_cache"]

LOG = logging.getLogger("precast")
LAYOUT = "v1"
_CANNOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished file of the cache: verified, with what it cost to make (0 seconds when it was there)."""

    path: Path
    sha256: str
    seconds: float
    cached: bool
    key: str


def open_cache(settings: Settings) -> Cache:
    """The cache of these settings. Makes nothing, but for the private folder of whoever has no home."""
    return Cache(default_root(settings), search=search_path(settings), wait_s=settings.jit_wait_s)


class Cache:
    """The store under one root, behind read-only ones of the same layout. Nothing is written before something is built.

    ``wait_s`` is how long one waits for somebody else's build of the same thing before building it as well.
    """

    def __init__(self, root: Path, *, search: tuple[Path, ...] = (), wait_s: float = lock.WAIT_S) -> None:
        self.root = root
        self.search = search
        self.wait_s = wait_s

    def entry(self, key: BuildKey) -> Path:
        """The folder of a key, whether it is there or not."""
        return _entry(self.root, key)

    def lookup(self, key: BuildKey) -> Path | None:
        """The verified payload of a key, or None. Changes nothing: a damaged entry is dealt with by ``obtain``."""
        found = self._find(key)
        return None if found is None else found.path

    def obtain(self, key: BuildKey, build: Callable[[Path], Path]) -> Artifact:
        """The payload of a key, built by ``build(staging folder) -> payload inside it`` unless it is there.

        Safe for any number of threads and processes: they wait for the first builder, and where they cannot, each
        publishes or keeps its own equal copy.
        """
        found = self._find(key)
        if found is not None:
            return found
        path = lock.lock_file(self.root, f"{key.name}-{key.digest[:16]}")
        with lock.exclusive(path, str(key), wait_s=self.wait_s) as turn:
            found = self._find(key)
            if found is not None:
                return found
            with self._staging(key) as staging:
                turn.tell(staging / LOG_NAME)
                started = time.perf_counter()
                payload = build(staging)
                return self.publish(key, staging, payload, time.perf_counter() - started)

    def publish(self, key: BuildKey, staging: Path, payload: Path, seconds: float) -> Artifact:
        """Make a staged build visible, and prove that it is; else this process keeps a copy for itself alone."""
        content = payload.read_bytes()
        try:
            self._show(key, staging, payload.name, content, seconds)
            why = "it does not show up there"
        except OSError as error:
            why = f"{error.filename2 or error.filename or self.root}: {error.strerror or error}"
        there = self._find(key, quiet=True)
        if there is not None:  # ours, or that of somebody who was faster without a lock between us: it is as good
            return Artifact(there.path, there.sha256, seconds, cached=False, key=key.digest)
        LOG.warning("%s: built, but not kept for later in %s: %s", key, self.root, why)
        path = _own_folder(os.getpid()) / key.digest[:16] / payload.name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        files.write_private(path, content)
        return Artifact(path, hashlib.sha256(content).hexdigest(), seconds, cached=False, key=key.digest)

    def store(self, key: BuildKey, file: Path, seconds: float) -> None:
        """Keep a file that was made elsewhere, under a key of its own; KernelError or OSError where it cannot be."""
        with self._staging(key) as staging:
            copy = Path(shutil.copy(file, staging))
            self._show(key, staging, copy.name, copy.read_bytes(), seconds)

    def spare(self, key: BuildKey, file: Path, seconds: float) -> None:
        """Keep what a later build may save itself, if it can be kept: this one does not depend on it."""
        try:
            self.store(key, file, seconds)
        except (OSError, KernelError) as error:
            LOG.info("%s: not kept in %s: %s", key, self.root, error)

    def failure_log(self, key: BuildKey) -> Path:
        """Where the log of a failed build stays, as its staging folder goes."""
        folder = self.root / LAYOUT / ".failed"
        trust.make_private(folder)
        return folder / f"{key.name}-{key.digest[:16]}.log"

    def _find(self, key: BuildKey, *, quiet: bool = False) -> Artifact | None:
        """The entry of a key in the first store that has it whole and that can be trusted."""
        for root in (*self.search, self.root):
            entry = _entry(root, key)
            try:
                found = verify(entry, key.digest, owner=self._owner(root))
            except NotWhole as error:
                if not quiet:
                    LOG.warning("%s: the cached build is not used: %s; it will be made again", entry, error)
                continue
            if found is None:
                continue
            if root == self.root:
                trust.require_own(root, entry)
            elif (unsafe := trust.why_not(root, found[0], owner=None)) is not None:
                LOG.warning("%s: the build of this cache is not used: %s", entry, unsafe)
                continue
            return Artifact(found[0], found[1].sha256, seconds=0.0, cached=True, key=key.digest)
        return None

    def _show(self, key: BuildKey, staging: Path, payload: str, content: bytes, seconds: float) -> None:
        """Let an entry appear, with its marker written last and on disk before; OSError where that cannot be done."""
        for extra in staging.iterdir():
            if extra.name not in {payload, LOG_NAME}:
                shutil.rmtree(extra) if extra.is_dir() else extra.unlink()
        for made in staging.iterdir():
            files.make_private(made)
        files.write_private(staging / META, Meta.of(key, payload, content, seconds).to_json().encode())
        entry = self.entry(key)
        trust.make_private(entry.parent)
        try:
            staging.rename(entry)
        except OSError:
            if self._is_whole(key):
                return
            if os.path.lexists(entry):
                self._move_aside(entry)
            try:
                staging.rename(entry)
            except OSError:  # a file system that renames no folders
                _copy(staging, entry)

    def _is_whole(self, key: BuildKey) -> bool:
        try:
            return verify(self.entry(key), key.digest, owner=self._owner(self.root)) is not None
        except NotWhole:
            return False

    def _owner(self, root: Path) -> int | None:
        """Whose files a store holds; an administrator's may be anybody's."""
        return os.getuid() if root == self.root else None

    def _move_aside(self, entry: Path) -> None:
        """Keep a damaged entry for whoever wants to know why."""
        damaged = self.root / LAYOUT / ".damaged"
        trust.make_private(damaged)
        aside = Path(tempfile.mkdtemp(prefix=f"{entry.parent.name}-{entry.name}-", dir=damaged))
        try:
            entry.rename(aside / "entry")
        except OSError as error:
            aside.rmdir()
            if isinstance(error, FileNotFoundError):  # somebody else has moved it
                return
            raise
        LOG.warning("%s: moved to %s", entry, aside)

    @contextmanager
    def _staging(self, key: BuildKey) -> Iterator[Path]:
        """A folder to build in, on the file system of the entry; gone afterwards, unless it has become the entry."""
        with _explaining(self.root, key.name):
            trust.require_own(self.root)
            parent = self.root / LAYOUT / ".staging"
            trust.make_private(parent)
            _sweep(parent)
            folder = Path(tempfile.mkdtemp(prefix=f"{lock.this_machine()}-{os.getpid()}-", dir=parent))
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _entry(root: Path, key: BuildKey) -> Path:
    return root / LAYOUT / key.name / key.digest[:16]


@contextmanager
def _explaining(root: Path, what: str) -> Iterator[None]:
    """Turn "the cache cannot be written" into the one error that names the folder and the way out."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise KernelError(
            f"{what}: the build cache cannot be written\n"
            f"  found   {error.filename or root}: {error.strerror}\n"
            f"  needed  {root}: a folder this user can write, with space left\n"
            f"  fix     1) {elsewhere.setting(root)}"
        ) from error


def _sweep(parent: Path) -> None:
    """Remove what killed processes of this machine left half-made. Other machines sweep their own."""
    prefix = f"{lock.this_machine()}-"
    for folder in parent.iterdir():
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if folder.name.startswith(prefix) and pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _own_folder(pid: int) -> Path:
    """A folder for what cannot be kept in the cache, as long as the process of this id lives."""
    folder = Path(tempfile.mkdtemp(prefix=f"precast-{pid}-"))

    def remove() -> None:
        if os.getpid() == pid:  # a forked child leaves it to its parent
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _copy(staging: Path, entry: Path) -> None:
    """Fill an entry in place, the marker last: until it is there, nobody takes the entry for one."""
    entry.mkdir(mode=0o700)
    names = sorted((path.name for path in staging.iterdir()), key=lambda name: name == META)
    for name in names:
        files.write_private(entry / name, (staging / name).read_bytes())
