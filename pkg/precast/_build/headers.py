"""The headers of torch's stable ABI: 2.15's, pinned by hash, because older ones leak every string argument.

Those of torch's C++, for torch 2.4 to 2.9, are in ``classic_headers``.

None of them is committed. A wheel and an sdist carry them in ``csrc/torch_stable``, beside torch's licence. A checkout
takes them from an installed torch that has the very same files, else from the wheel on the package index that pip is
configured for: only the few pieces that hold them are read, by HTTP range.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import logging
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from precast._build import trust
from precast.errors import KernelError

LOG = logging.getLogger("precast")
PINS = Path(__file__).with_name("headers.json")
BLOCK_BYTES = 1 << 18

# One wheel for every machine: the headers of the closure do not differ, and their hashes would show it if they did.
_WHEEL_OPTIONS = ("--python-version", "3.12", "--implementation", "cp", "--abi", "cp312")
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux1_x86_64")  # torch 2.4 to 2.6 have the latter in their names
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pins:
    """What is taken from which torch: the sha256 of each header by its path under ``include``, and of the licence."""

    torch: str
    headers: Mapping[str, str]
    notices: Mapping[str, str]

    @property
    def digest(self) -> str:
        """One digest over all pins; names the folder they are kept in."""
        return hashlib.sha256(json.dumps([dict(self.headers), dict(self.notices)], sort_keys=True).encode()).hexdigest()


def load_pins(path: Path = PINS) -> Pins:
    """Read headers.json."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Pins(data["torch"], data["headers"], data["notices"])


def ensure_headers(dest: Path, pins: Pins | None = None) -> Path:
    """Fill ``dest`` with ``include/`` and the notices unless they are there, and return the include folder."""
    pins = load_pins() if pins is None else pins
    include = dest / "include"
    if complete(dest, pins):
        return include
    try:
        files = _from_installed_torch(pins) or _from_index(pins)
        write(dest, files)
    except OSError as error:
        raise _unavailable(pins, f"{dest}: {error}") from error
    return include


def complete(dest: Path, pins: Pins) -> bool:
    """Whether every pinned file is in ``dest`` with the pinned content."""
    wanted = {**{f"include/{name}": sha for name, sha in pins.headers.items()}, **pins.notices}
    try:
        return all(hashlib.sha256((dest / name).read_bytes()).hexdigest() == sha for name, sha in wanted.items())
    except (FileNotFoundError, NotADirectoryError):
        return False


def check(name: str, data: bytes, wanted: str) -> bytes:
    """Refuse a file whose content is not the pinned one."""
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise KernelError(
            f"{name} is not the file that precast was written against\n"
            f"  found   sha256 {found}\n"
            f"  needed  sha256 {wanted} (headers.json)\n"
            f"  fix     1) give pip an index that serves the released torch"
        )
    return data


def closure(roots: Iterable[str], read: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """The headers that ``roots`` include, directly or not, conditional ones too; ``read`` gives None for no header."""
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
    """The same out of a wheel of torch."""
    names = frozenset(wheel.namelist())

    def read(name: str) -> bytes | None:
        return wheel.read(f"torch/include/{name}") if f"torch/include/{name}" in names else None

    return closure(roots, read)


def _from_installed_torch(pins: Pins) -> dict[str, bytes] | None:
    """The pinned files from the torch beside us, if all of them are the same; torch is not imported."""
    spec = importlib.util.find_spec("torch")
    for place in () if spec is None else (spec.submodule_search_locations or ()):
        include = Path(place) / "include"
        site = Path(place).parent
        notices = {name: _notice_of(site, pins.torch, name) for name in pins.notices}
        files = {f"include/{name}": include / name for name in pins.headers} | notices
        if not all(path.is_file() for path in files.values()):
            continue
        contents = {name: path.read_bytes() for name, path in files.items()}
        wanted = {f"include/{name}": sha for name, sha in pins.headers.items()} | dict(pins.notices)
        if all(hashlib.sha256(contents[name]).hexdigest() == wanted[name] for name in contents):
            return contents
    return None


def _notice_of(site: Path, version: str, name: str) -> Path:
    found = sorted(site.glob(f"torch-{version}*.dist-info/licenses/{name}"))
    return found[0] if found else site / f"torch-{version}.dist-info" / "licenses" / name


def _from_index(pins: Pins) -> dict[str, bytes]:
    """The pinned files from the wheel on the index, each checked against its pin."""
    LOG.warning("reading the headers of torch %s from the package index, once", pins.torch)
    try:
        url = find_wheel(pins.torch)
    except OSError as error:
        raise _unavailable(pins, str(error)) from error
    try:
        with open_url(url) as file, zipfile.ZipFile(file) as wheel:
            files = {f"include/{name}": wheel.read(f"torch/include/{name}") for name in pins.headers}
            notices = f"torch-{pins.torch}.dist-info/licenses"
            files |= {name: wheel.read(f"{notices}/{name}") for name in pins.notices}
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise _unavailable(pins, f"{without_secret(url)}: {error}") from error
    wanted = {f"include/{name}": sha for name, sha in pins.headers.items()} | dict(pins.notices)
    return {name: check(name, data, wanted[name]) for name, data in files.items()}


def find_wheel(torch: str, run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> str:
    """Ask pip, with whatever configuration it has, where the wheel of a release lies; it is not downloaded."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
        command += ["--only-binary=:all:", *(f"--platform={platform}" for platform in _PLATFORMS), *_WHEEL_OPTIONS]
        command += ["--target", folder, "--report", str(report), f"torch=={torch}"]
        # Away from the current directory, whose files -m would prefer to pip and to the standard library.
        done = run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode or not report.is_file():
            raise FileNotFoundError((done.stderr or done.stdout).strip()[-500:] or "pip said nothing")
        found: str = json.loads(report.read_bytes())["install"][0]["download_info"]["url"]
    return found


def open_url(url: str) -> io.BufferedReader:
    """A seekable file over a URL: local ones as they are, others block by block."""
    import urllib.request  # takes longer than a rebuild after an edit, which has the headers

    if url.startswith("file:"):
        return Path(urllib.request.url2pathname(url.removeprefix("file://"))).open("rb")
    return io.BufferedReader(_RangeReader(url), BLOCK_BYTES)


class _RangeReader(io.RawIOBase):
    """Reads a remote file in aligned blocks, each fetched once by an HTTP range request."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._at = 0
        self._blocks: dict[int, bytes] = {}
        self._size = 0
        self._fetch(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # as io calls it
        index, start = divmod(self._at, BLOCK_BYTES)
        piece = self._fetch(index)[start : start + len(buffer)] if self._at < self._size else b""
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _fetch(self, index: int) -> bytes:
        import urllib.request

        if index not in self._blocks:
            first = index * BLOCK_BYTES
            asked = {"Range": f"bytes={first}-{first + BLOCK_BYTES - 1}"}
            request = urllib.request.Request(self._url, headers=asked)  # the scheme is pip's
            with urllib.request.urlopen(request, timeout=60) as answer:
                total = re.fullmatch(rf"bytes {first}-\d+/(\d+)", answer.headers.get("Content-Range", ""))
                if total is None:
                    raise OSError(f"the server sends whole files only (status {answer.status})")
                self._size = int(total[1])
                self._blocks[index] = answer.read()
        return self._blocks[index]


def write(dest: Path, files: Mapping[str, bytes]) -> None:
    """Write beside ``dest`` and rename: another process sees all of the files or none."""
    trust.make_private(dest.parent)
    staging = Path(tempfile.mkdtemp(prefix=f".{dest.name}-", dir=dest.parent))
    try:
        for name, data in files.items():
            path = staging / PurePosixPath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        staging.chmod(0o755)
        if dest.exists():  # incomplete, or somebody was faster with equal files
            shutil.rmtree(dest)
        staging.rename(dest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def without_secret(url: str) -> str:
    """A URL without the name and password in it, for messages."""
    return re.sub(r"//[^/@]*@", "//", url)


def _unavailable(pins: Pins, found: str) -> KernelError:
    return KernelError(
        f"the headers of torch's stable ABI are missing, so the host library cannot be built\n"
        f"  found   {found}\n"
        f"  needed  the {len(pins.headers)} headers of torch {pins.torch} that headers.json names\n"
        f"  fix     1) run this once where pip reaches a package index\n"
        f"          2) install precast from its wheel or its sdist: both bring the headers along"
    )
