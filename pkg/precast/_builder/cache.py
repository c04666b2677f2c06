"""A content-addressed store for everything that is built, ahead of time or at run time.

``<root>/v1/<name>/<key16>/{payload, meta.json, build.log}``. A key is the digest of a build's inputs (contents, flags,
compiler), never of paths or times. An entry is made in a staging folder and appears by one rename, with ``meta.json``
written last. An entry without meta.json, or whose content does not match it, is damaged: it is moved aside and rebuilt.

Nothing here trusts the file system beyond that. Locks may fail to exclude, a rename may fail, times may be wrong, and
entries from another machine may show up late (NFS does all four). A process that cannot see an entry after publishing
it keeps its own copy of the bytes. The time of a file is never read.
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
from precast._builder import lock, trust
from precast._builder.entry import LOG_NAME, META, BuildKey, Meta, NotWhole, verify
from precast._builder.roots import default_root, search_path
from precast.core import files, owned
from precast.errors import KernelError

__all__ = ["LAYOUT", "Artifact", "BuildKey", "Cache", "default_root", "open_cache"]

LOG = logging.getLogger("precast")
LAYOUT = "v1"
_CANNOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished and verified file of the cache, with the time to make it (0 seconds for a cache hit)."""

    path: Path
    sha256: str
    seconds: float
    cached: bool
    key: str


def open_cache(settings: Settings) -> Cache:
    """The cache of these settings. Creates nothing, except the private folder of a user without a home."""
    return Cache(default_root(settings), search=search_path(settings), wait_s=settings.jit_wait_s)


class Cache:
    """The store under one root, searched after read-only stores of the same layout. Only a build writes to it.

    ``wait_s`` is how long to wait for another process that builds the same thing before building it here as well.
    """

    def __init__(self, root: Path, *, search: tuple[Path, ...] = (), wait_s: float = lock.WAIT_S) -> None:
        self.root = root
        self.search = search
        self.wait_s = wait_s

    def entry(self, key: BuildKey) -> Path:
        """The folder of a key, whether it exists or not."""
        return _entry(self.root, key)

    def lookup(self, key: BuildKey) -> Path | None:
        """The verified payload of a key, or None. Changes nothing: ``obtain`` handles damaged entries."""
        found = self._find(key)
        return None if found is None else found.path

    def obtain(self, key: BuildKey, build: Callable[[Path], Path]) -> Artifact:
        """The payload of a key; on a cache miss ``build(staging folder) -> payload inside it`` builds it.

        Safe for any number of threads and processes: they wait for the first builder. If they cannot wait, each
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
        """Make a staged build visible and check that it is; otherwise keep a private copy for this process."""
        content = payload.read_bytes()
        try:
            self._show(key, staging, payload.name, content, seconds)
            why = "it does not show up there"
        except OSError as error:
            why = f"{error.filename2 or error.filename or self.root}: {error.strerror or error}"
        there = self._find(key, quiet=True)
        if there is not None:  # ours, or an equal one from a faster builder without a common lock
            return Artifact(there.path, there.sha256, seconds, cached=False, key=key.digest)
        LOG.warning("%s: built, but not kept for later in %s: %s", key, self.root, why)
        path = _own_folder(os.getpid()) / key.digest[:16] / payload.name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        files.write_private(path, content)
        return Artifact(path, hashlib.sha256(content).hexdigest(), seconds, cached=False, key=key.digest)

    def store(self, key: BuildKey, file: Path, seconds: float) -> None:
        """Keep a file that was made elsewhere, under its own key. KernelError or OSError if that fails."""
        with self._staging(key) as staging:
            copy = Path(shutil.copy(file, staging))
            self._show(key, staging, copy.name, copy.read_bytes(), seconds)

    def spare(self, key: BuildKey, file: Path, seconds: float) -> None:
        """Keep a file that saves work for later builds, if possible; this build does not depend on it."""
        try:
            self.store(key, file, seconds)
        except (OSError, KernelError) as error:
            LOG.info("%s: not kept in %s: %s", key, self.root, error)

    def failure_log(self, key: BuildKey) -> Path:
        """The path for the log of a failed build, whose staging folder is removed."""
        folder = self.root / LAYOUT / ".failed"
        owned.make_private(folder)
        return folder / f"{key.name}-{key.digest[:16]}.log"

    def _find(self, key: BuildKey, *, quiet: bool = False) -> Artifact | None:
        """The entry of a key in the first store that has it, undamaged and trusted."""
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
            elif (unsafe := owned.why_not(root, found[0], owner=None)) is not None:
                LOG.warning("%s: the build of this cache is not used: %s", entry, unsafe)
                continue
            return Artifact(found[0], found[1].sha256, seconds=0.0, cached=True, key=key.digest)
        return None

    def _show(self, key: BuildKey, staging: Path, payload: str, content: bytes, seconds: float) -> None:
        """Make an entry appear, with its marker written to disk last; OSError if that fails."""
        for extra in staging.iterdir():
            if extra.name not in {payload, LOG_NAME}:
                shutil.rmtree(extra) if extra.is_dir() else extra.unlink()
        for made in staging.iterdir():
            files.make_private(made)
        files.write_private(staging / META, Meta.of(key, payload, content, seconds).to_json().encode())
        entry = self.entry(key)
        owned.make_private(entry.parent)
        try:
            staging.rename(entry)
        except OSError:
            if self._is_whole(key):
                return
            if os.path.lexists(entry):
                self._move_aside(entry)
            try:
                staging.rename(entry)
            except OSError:  # the file system cannot rename folders
                _copy(staging, entry)

    def _is_whole(self, key: BuildKey) -> bool:
        try:
            return verify(self.entry(key), key.digest, owner=self._owner(self.root)) is not None
        except NotWhole:
            return False

    def _owner(self, root: Path) -> int | None:
        """The required owner of a store's files; None if any user may own them, as in an administrator's store."""
        return os.getuid() if root == self.root else None

    def _move_aside(self, entry: Path) -> None:
        """Keep a damaged entry for later inspection."""
        damaged = self.root / LAYOUT / ".damaged"
        owned.make_private(damaged)
        aside = Path(tempfile.mkdtemp(prefix=f"{entry.parent.name}-{entry.name}-", dir=damaged))
        try:
            entry.rename(aside / "entry")
        except OSError as error:
            aside.rmdir()
            if isinstance(error, FileNotFoundError):  # another process has moved it
                return
            raise
        LOG.warning("%s: moved to %s", entry, aside)

    @contextmanager
    def _staging(self, key: BuildKey) -> Iterator[Path]:
        """A folder to build in, on the file system of the entry; removed afterwards unless it became the entry."""
        with _explaining(self.root, key.name):
            trust.require_own(self.root)
            parent = self.root / LAYOUT / ".staging"
            owned.make_private(parent)
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
    """Turn "the cache cannot be written" into the one error that names the folder and the fix."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise KernelError(
            f"{what}: the build cache cannot be written",
            found=f"{error.filename or root}: {error.strerror}",
            needed=f"{root}: a folder this user can write, with space left",
            fix=trust.another(root),
        ) from error


def _sweep(parent: Path) -> None:
    """Remove unfinished folders that killed processes of this machine left. Other machines remove their own."""
    prefix = f"{lock.this_machine()}-"
    for folder in parent.iterdir():
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if folder.name.startswith(prefix) and pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _own_folder(pid: int) -> Path:
    """A folder for builds that cannot be kept in the cache, for the lifetime of this process."""
    folder = Path(tempfile.mkdtemp(prefix=f"precast-{pid}-"))

    def remove() -> None:
        if os.getpid() == pid:  # a forked child leaves the folder to its parent
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _copy(staging: Path, entry: Path) -> None:
    """Fill an entry in place, with the marker last: until then no process accepts the entry."""
    entry.mkdir(mode=0o700)
    names = sorted((path.name for path in staging.iterdir()), key=lambda name: name == META)
    for name in names:
        files.write_private(entry / name, (staging / name).read_bytes())
