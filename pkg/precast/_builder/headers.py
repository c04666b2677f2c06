"""The headers of torch's stable ABI for extensions; precast's own library needs none (csrc/host/torch_c.h).

A release wheel and an sdist carry the headers of one torch in ``csrc/torch_stable``, with torch's licence. Each file is
pinned by hash and none is committed: the job that makes the wheel or the sdist reads them from the package index.
A precast without them, such as a checkout, uses the headers of the installed torch.

``classic_headers`` has the headers of torch's C++, for torch 2.4 to 2.9.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import posixpath
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from precast._builder import lock, sources, torch_wheel
from precast._builder.cache import Cache
from precast.core import owned, pip
from precast.core.torch_abi import STABLE_FLOOR
from precast.core.version import Release
from precast.errors import KernelError

LOG = logging.getLogger("precast")
PINS = Path(__file__).with_name("headers.json")
FOLDER = "torch_stable"  # inside csrc

# Before this release, an op with a std::string argument leaks a copy of it at each call. The bug is in
# torch/csrc/stable/stableivalue_conversions.h, so it is compiled into the extension.
LEAK_FIXED = Release(2, 14)

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_VERSION = re.compile(r"^#define TORCH_VERSION_(MAJOR|MINOR) (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pins:
    """The torch to take files from, the sha256 of each header by its path under ``include``, and of the licence."""

    torch: str
    headers: Mapping[str, str]
    notices: Mapping[str, str]

    @property
    def digest(self) -> str:
        """One digest over all pins. It names the folder of the fetched headers."""
        return hashlib.sha256(json.dumps([dict(self.headers), dict(self.notices)], sort_keys=True).encode()).hexdigest()


def load_pins(path: Path = PINS) -> Pins:
    """Read headers.json."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Pins(data["torch"], data["headers"], data["notices"])


def for_extensions() -> Path:
    """The include folder for compiling extensions: the pinned headers next to our sources, otherwise torch's own."""
    shipped = _shipped()
    if complete(shipped, load_pins()):
        return shipped / "include"
    found = "no torch"
    for place in installed_torch():
        release = _release_of(place / "include")
        if release is not None and release >= STABLE_FLOOR:
            if release < LEAK_FIXED:
                _warn_of_leak(place / "include", release)
            return place / "include"
        found = f"{place}, {'without headers' if release is None else f'torch {release}'}"
    raise KernelError(
        "the headers of the stable ABI of torch are missing",
        found=f"{found}, and a precast that brings none: it was not installed from a release",
        needed=f"the headers of torch {STABLE_FLOOR} or newer; those before {LEAK_FIXED} leak string arguments",
        fix=[
            f"{pip.install_command()} 'torch>={LEAK_FIXED}'",
            "install precast from a wheel of a release, or from its sdist: both bring the headers",
        ],
    )


def pinned(cache: Cache) -> Path:
    """The include folder of the pinned headers, for a release: next to our sources, in the cache, or downloaded."""
    pins = load_pins()
    shipped, kept = _shipped(), in_cache(cache, pins)
    for place in (shipped, kept):
        if complete(place, pins):
            return place / "include"
    where = lock.lock_file(cache.root, f"headers-{pins.digest[:16]}")
    with lock.exclusive(where, f"the headers of torch {pins.torch}", wait_s=cache.wait_s):
        return ensure_headers(kept, pins)


def are_here(csrc: Path, cache: Cache) -> bool:
    """Whether ``pinned`` would need no network."""
    pins = load_pins()
    return complete(csrc / FOLDER, pins) or complete(in_cache(cache, pins), pins)


def in_cache(cache: Cache, pins: Pins) -> Path:
    """The folder for downloaded headers."""
    return cache.root / "headers" / pins.digest[:16]


def ensure_headers(dest: Path, pins: Pins) -> Path:
    """Fill ``dest`` with ``include/`` and the notices unless it is complete; return the include folder."""
    include = dest / "include"
    if complete(dest, pins):
        return include
    try:
        write(dest, _from_installed_torch(pins) or _from_index(pins))
    except OSError as error:
        raise _unavailable(pins, str(error)) from error
    return include


def complete(dest: Path, pins: Pins) -> bool:
    """Whether every pinned file is in ``dest`` with the pinned content."""
    wanted = {**{f"include/{name}": sha for name, sha in pins.headers.items()}, **pins.notices}
    try:
        return all(hashlib.sha256((dest / name).read_bytes()).hexdigest() == sha for name, sha in wanted.items())
    except (FileNotFoundError, NotADirectoryError):
        return False


def check(name: str, data: bytes, wanted: str) -> bytes:
    """Refuse a file whose content differs from its pin."""
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise KernelError(
            f"{name} is not the file that precast was written against",
            found=f"sha256 {found}",
            needed=f"sha256 {wanted} (headers.json)",
            fix="export PIP_INDEX_URL=https://pypi.org/simple  # serves the released torch; then build again",
        )
    return data


def closure(roots: Iterable[str], read: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """The headers that ``roots`` reach, including conditional ones; ``read`` returns None for an unknown header."""
    found: dict[str, bytes] = {}
    todo = [(name, name) for name in roots]
    while todo:
        spelled, beside = todo.pop()
        name = next((name for name in (spelled, beside) if name in found or read(name) is not None), None)
        data = None if name is None or name in found else read(name)
        if name is None or data is None:
            continue
        found[name] = data
        for match in _INCLUDE.findall(data):
            text = match.decode()
            todo.append((text, posixpath.normpath(posixpath.join(posixpath.dirname(name), text))))
    return found


def closure_in(wheel: zipfile.ZipFile, roots: Iterable[str]) -> dict[str, bytes]:
    """The same for a wheel of torch."""
    names = frozenset(wheel.namelist())

    def read(name: str) -> bytes | None:
        return wheel.read(f"torch/include/{name}") if f"torch/include/{name}" in names else None

    return closure(roots, read)


def _shipped() -> Path:
    return sources.csrc_dir() / FOLDER


def installed_torch() -> Iterator[Path]:
    """The folder of the installed torch, found without importing torch."""
    spec = importlib.util.find_spec("torch")
    return map(Path, () if spec is None else (spec.submodule_search_locations or ()))


def _release_of(include: Path) -> Release | None:
    """The torch minor of a set of headers; None if they are missing."""
    path = include / "torch" / "headeronly" / "version.h"
    if not path.is_file():
        return None
    said = dict(_VERSION.findall(path.read_text(encoding="utf-8")))
    return Release(int(said["MAJOR"]), int(said["MINOR"])) if len(said) == 2 else None


@functools.cache  # warns once for each torch
def _warn_of_leak(include: Path, release: Release) -> None:
    LOG.warning(
        "the headers of torch %s leak memory: an op with a string argument keeps a copy of it at each call (%s); "
        "build with torch %s or newer, or with a precast from a release wheel or an sdist, which brings fixed headers",
        release,
        include,
        LEAK_FIXED,
    )


def _from_installed_torch(pins: Pins) -> dict[str, bytes] | None:
    wanted = {f"include/{name}": sha for name, sha in pins.headers.items()} | dict(pins.notices)
    for place in installed_torch():
        notices = {name: _notice_of(place.parent, pins.torch, name) for name in pins.notices}
        files = {f"include/{name}": place / "include" / name for name in pins.headers} | notices
        if not all(path.is_file() for path in files.values()):
            continue
        contents = {name: path.read_bytes() for name, path in files.items()}
        if all(hashlib.sha256(contents[name]).hexdigest() == wanted[name] for name in contents):
            return contents
    return None


def _notice_of(site: Path, version: str, name: str) -> Path:
    found = sorted(site.glob(f"torch-{version}*.dist-info/licenses/{name}"))
    return found[0] if found else site / f"torch-{version}.dist-info" / "licenses" / name


def _from_index(pins: Pins) -> dict[str, bytes]:
    LOG.warning("reading the headers of torch %s from the package index, once", pins.torch)
    with torch_wheel.opened(torch_wheel.find_wheel(pins.torch)) as wheel:
        licences = re.compile(rf"torch-{re.escape(pins.torch)}[^/]*\.dist-info/licenses/([^/]+)")
        notices = {match[1]: match[0] for match in map(licences.fullmatch, wheel.namelist()) if match is not None}
        files = {f"include/{name}": wheel.read(f"torch/include/{name}") for name in pins.headers}
        files |= {name: wheel.read(notices.get(name, name)) for name in pins.notices}
    wanted = {f"include/{name}": sha for name, sha in pins.headers.items()} | dict(pins.notices)
    return {name: check(name, data, wanted[name]) for name, data in files.items()}


def write(dest: Path, files: Mapping[str, bytes]) -> None:
    """Write to a temporary folder and rename it, so that another process sees all of the files or none."""
    owned.make_private(dest.parent)
    staging = Path(tempfile.mkdtemp(prefix=f".{dest.name}-", dir=dest.parent))
    try:
        for name, data in files.items():
            path = staging / PurePosixPath(name)
            owned.make_private(path.parent)
            path.write_bytes(data)
            path.chmod(0o600)
        if dest.exists():  # incomplete, or equal files from a faster process
            shutil.rmtree(dest)
        staging.rename(dest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unavailable(pins: Pins, found: str) -> KernelError:
    return KernelError(
        "the headers of the stable ABI of torch are missing; releases and sdists have them",
        found=found,
        needed=f"the {len(pins.headers)} headers of torch {pins.torch} that headers.json names",
        fix=[
            f"export PIP_INDEX_URL=https://pypi.org/simple  # has torch {pins.torch}; then build again",
            f"{pip.install_command()} torch=={pins.torch}  # brings the same headers; then build again",
        ],
    )
