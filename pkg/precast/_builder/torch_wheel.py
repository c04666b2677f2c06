"""Read single files of a torch release from the package index, with HTTP range requests.

pip finds the wheel, because pip knows how to reach the user's index. It sees only that part of the user's
configuration: a constraint, a folder of wheels or ``no-index`` controls which torch is installed, but here a fixed
release is only read.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import tempfile
import urllib.parse
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from precast._builder import python

BLOCK_BYTES = 1 << 18
PYPI = "https://pypi.org/simple"

# One wheel serves every machine: the headers do not differ between platforms, and their hashes would show it.
_WHEEL_OPTIONS = ("--python-version", "3.12", "--implementation", "cp", "--abi", "cp312")
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux1_x86_64")  # the latter is in the names of torch 2.4 to 2.6
# pip's options for the location of an index and the way to reach it. The rest of its configuration is left out.
_REACH = (
    "index-url",
    "extra-index-url",
    "trusted-host",
    "cert",
    "client-cert",
    "proxy",
    "keyring-provider",
    "timeout",
    "default-timeout",
    "retries",
)
_SECTIONS = ("global", "install", ":env:")  # later ones win, as in pip

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class Reach:
    """How pip reaches the index: the options of ``_REACH`` that are set, each as pip prints it."""

    options: Mapping[str, str]

    @property
    def indexes(self) -> tuple[str, ...]:
        """The indexes, the main one first. Their URLs may contain a password."""
        return (self.options.get("index-url", PYPI), *self.options.get("extra-index-url", "").split())

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment for a pip that reads only this configuration."""
        kept = {name: value for name, value in environ.items() if not name.upper().startswith("PIP_")}
        own = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in self.options.items()}
        return {**kept, **own, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def find_wheel(version: str, run: Run = subprocess.run, package: str = "torch") -> str:
    """The URL of the wheel of a release, without downloading it; an OSError says which indexes lack it."""
    with tempfile.TemporaryDirectory() as folder:
        reach = _configured(folder, run)
        report = Path(folder) / "report.json"
        command = python.command("pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed")
        command += ["--only-binary=:all:", *(f"--platform={platform}" for platform in _PLATFORMS), *_WHEEL_OPTIONS]
        command += ["--target", folder, "--report", str(report), f"{package}=={version}"]
        env = reach.environment(python.environment())
        done = run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        if done.returncode or not report.is_file():
            asked = ", ".join(map(without_secret, reach.indexes))
            said = without_secret((done.stderr or done.stdout).strip()[-500:]) or "pip said nothing"
            raise FileNotFoundError(f"no wheel of {package} {version} on {asked}: {said}")
        url: str = json.loads(report.read_bytes())["install"][0]["download_info"]["url"]
    return _with_password(url, reach.indexes)


@contextlib.contextmanager
def opened(url: str) -> Iterator[zipfile.ZipFile]:
    """The wheel at a URL as an archive that is read in blocks. Any failure is an OSError that names the URL."""
    try:
        with open_url(url) as file, zipfile.ZipFile(file) as wheel:
            yield wheel
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise OSError(f"{without_secret(url)}: {without_secret(str(error))}") from error


def open_url(url: str) -> io.BufferedReader:
    """A seekable file for a URL: a local file is opened, a remote one is read block by block."""
    import urllib.request  # slower than a rebuild after an edit, which needs no URL

    if url.startswith("file:"):
        return Path(urllib.request.url2pathname(url.removeprefix("file://"))).open("rb")
    return io.BufferedReader(_RangeReader(url), BLOCK_BYTES)


def without_secret(text: str) -> str:
    """The text with user names and passwords removed from its URLs, for messages."""
    return re.sub(r"//[^/@\s]*@", "//", text)


def _configured(folder: str, run: Run) -> Reach:
    """The user's pip settings about indexes, from files and PIP_* variables, in pip's own order."""
    command = python.command("pip", "config", "list")
    done = run(command, cwd=folder, env=python.environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise FileNotFoundError(f"no answer from pip config list: {(done.stderr or done.stdout).strip()[-500:]}")
    lines = (line.partition("=") for line in done.stdout.splitlines())
    known = {name: str(ast.literal_eval(value)) for name, _, value in lines if value[:1] in ("'", '"')}
    return Reach(
        {
            name: known[f"{section}.{name}"]
            for section in _SECTIONS
            for name in _REACH
            if known.get(f"{section}.{name}", "").strip()
        }
    )


def _with_password(url: str, indexes: tuple[str, ...]) -> str:
    """Restore the user name and password of an index in the URL of its file; pip's report omits them."""
    place = urllib.parse.urlsplit(url)
    for index in map(urllib.parse.urlsplit, indexes):
        user, at, host = index.netloc.rpartition("@")
        if at and place.netloc == host:
            return place._replace(netloc=f"{user}@{host}").geturl()
    return url


class _RangeReader(io.RawIOBase):
    """Reads a remote file in aligned blocks, each fetched once with an HTTP range request."""

    def __init__(self, url: str) -> None:
        super().__init__()
        place = urllib.parse.urlsplit(url)
        user, at, host = place.netloc.rpartition("@")
        self._url = place._replace(netloc=host).geturl()
        self._password = base64.b64encode(urllib.parse.unquote(user).encode()).decode() if at else None
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
            wanted = {"Range": f"bytes={first}-{first + BLOCK_BYTES - 1}"}
            request = urllib.request.Request(self._url, headers=wanted)  # the scheme comes from pip
            if self._password is not None:
                request.add_unredirected_header("Authorization", f"Basic {self._password}")
            with urllib.request.urlopen(request, timeout=60) as answer:
                total = re.fullmatch(rf"bytes {first}-\d+/(\d+)", answer.headers.get("Content-Range", ""))
                if total is None:
                    raise OSError(f"the server sends whole files only (status {answer.status})")
                self._size = int(total[1])
                self._blocks[index] = answer.read()
        return self._blocks[index]
