"""The headers of torch's C++ for torch 2.4 to 2.9, pinned by one digest per minor; no wheel carries them.

A library for a torch release is compiled with the pinned headers, read by HTTP range from the wheel on the package
index. A library built at run time is compiled with the headers of the installed torch.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from precast._builder import headers, sources, torch_wheel, trust
from precast.core import pip
from precast.core.torch_abi import Exact
from precast.core.version import Release
from precast.errors import KernelError

PINS = Path(__file__).with_name("classic_headers.json")

# The torch headers that torch_adapter.cpp includes; the headers they include are pinned with them.
ROOTS = (
    "ATen/Parallel.h",
    "ATen/core/Tensor.h",
    "ATen/ops/empty_strided_ops.h",
    "torch/csrc/api/include/torch/version.h",
    "torch/library.h",
)


@dataclass(frozen=True, slots=True)
class ClassicPins:
    """One release of torch: the number of headers that ROOTS lead to, and one digest of their names and contents."""

    torch: str
    files: int
    digest: str


def load_pins(path: Path = PINS) -> Mapping[Release, ClassicPins]:
    """Read classic_headers.json, by minor."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return {Release.parse(minor): ClassicPins(**pins) for minor, pins in data.items()}


def pin(wheel: zipfile.ZipFile, torch: str) -> ClassicPins:
    """The pins for the headers of one wheel."""
    return _pins_of(torch, headers.closure_in(wheel, ROOTS))


def ensure(folder: Path, abi: Exact, pins: ClassicPins | None = None) -> Path:
    """The include folder below ``folder`` with the pinned headers of an ABI's minor; read from the index only once."""
    if pins is None:
        pins = _pins_for(abi)
    dest = folder / f"torch-{pins.torch}-{pins.digest[:16]}"
    include = dest / "include"
    if complete(include, pins):
        return include
    headers.LOG.warning("reading the C++ headers of torch %s from the package index, once", pins.torch)
    try:
        url = torch_wheel.find_wheel(pins.torch)
        with torch_wheel.opened(url) as wheel:
            files = headers.closure_in(wheel, ROOTS)
    except OSError as error:
        raise _unavailable(pins, str(error)) from error
    found = _pins_of(pins.torch, files)
    if found != pins:
        raise KernelError(
            f"the headers of torch {pins.torch} are not those that precast was written against",
            found=f"{found.files} headers of digest {found.digest} in {torch_wheel.without_secret(url)}",
            needed=f"{pins.files} headers of digest {pins.digest} (classic_headers.json)",
            fix=f"export PIP_INDEX_URL=https://pypi.org/simple  # has torch {pins.torch}; then build again",
        )
    try:
        headers.write(dest, {f"include/{name}": data for name, data in files.items()})
    except OSError as error:
        raise KernelError(
            f"the C++ headers of torch {pins.torch} cannot be written",
            found=f"{dest}: {error}",
            needed="a folder that this user can write, with space left",
            fix=trust.another(folder),
        ) from error
    return include


def complete(include: Path, pins: ClassicPins) -> bool:
    """Whether the folder holds every pinned header, unchanged."""

    def read(name: str) -> bytes | None:
        path = include / name
        return path.read_bytes() if path.is_file() else None

    return _pins_of(pins.torch, headers.closure(ROOTS, read)) == pins


def installed(git: str) -> Path:
    """The include folder of the installed torch, which must be of this commit; torch is not imported."""
    found = "no torch"
    fix = again = f"{pip.install_command()} --force-reinstall torch  # then restart this process"
    for place in headers.installed_torch():
        text = (place / "version.py").read_text(encoding="utf-8") if (place / "version.py").is_file() else ""
        said = re.search(r"^git_version.*=\s*['\"](\w+)['\"]", text, re.MULTILINE)
        found = f"a torch of git {said[1] if said else 'unknown'} in {place}"
        if said is not None and said[1] == git:
            if (place / "include" / ROOTS[-1]).is_file():
                return place / "include"
            found, fix = f"{found}, without its headers", again
        elif said is not None:
            fix = "restart this process, so that it imports the installed torch"
    raise KernelError(
        f"no host library can be built for the torch of git {git}",
        found=found,
        needed="that torch with its folder torch/include",
        fix=fix,
    )


def _pins_for(abi: Exact) -> ClassicPins:
    known = load_pins()
    if abi.release not in known:
        raise KernelError(
            f"no host library can be built ahead of time for {abi}",
            found=f"pinned headers of torch {', '.join(map(str, known))}",
            needed=f"pinned headers of torch {abi.release}",
            fix=f"python -m tools headers --classic {abi.release}.0",
        )
    return known[abi.release]


def _pins_of(torch: str, files: Mapping[str, bytes]) -> ClassicPins:
    listed = (sources.SourceFile(name, Path(name), data) for name, data in files.items())
    return ClassicPins(torch, len(files), sources.digest_of(listed))


def _unavailable(pins: ClassicPins, found: str) -> KernelError:
    return KernelError(
        f"the C++ headers of torch {pins.torch} are missing, so no host library can be built for it",
        found=found,
        needed=f"the {pins.files} headers that classic_headers.json pins",
        fix=f"export PIP_INDEX_URL=https://pypi.org/simple  # has torch {pins.torch}; then build again",
    )
