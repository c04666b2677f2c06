"""Small made-up distributions with real metadata, for tests of what is done with wheels rather than with their code."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

TAG = "py3-none-manylinux_2_28_x86_64"
_EPOCH = (2020, 1, 1, 0, 0, 0)


def make_wheel(
    folder: Path,
    *,
    name: str = "precast",
    version: str = "1.0",
    tag: str = TAG,
    requires: Sequence[str] = (),
    python: str | None = ">=3.10",
    files: Mapping[str, bytes] | None = None,
    metadata: str | None = None,
) -> Path:
    """Write a wheel that pip and uv accept; ``metadata`` takes the place of what the rest says."""
    info = f"{name}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    lines += [] if python is None else [f"Requires-Python: {python}"]
    content = {f"{name}/__init__.py": f"__version__ = {version!r}\n".encode(), **(files or {})}
    content[f"{info}/METADATA"] = ("\n".join(lines) + "\n" if metadata is None else metadata).encode()
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    rows = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = ("\n".join([*rows, f"{info}/RECORD,,"]) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in content.items():
            archive.writestr(zipfile.ZipInfo(member, _EPOCH), data)
    return path


def make_sdist(folder: Path, *, name: str = "precast", version: str = "1.0", metadata: str | None = None) -> Path:
    """Write an sdist that holds its metadata and nothing to build."""
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.10\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    data = (text if metadata is None else metadata).encode()
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(f"{name}-{version}/PKG-INFO")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
