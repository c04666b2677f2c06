"""Read what any wheel, folder or library needs and holds, from its bytes. Nothing of it is imported or opened.

Facts first: :func:`read` returns them as a value. :mod:`precast._builder.xray_verdict` judges them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email import message_from_bytes
from pathlib import Path
from posixpath import normpath
from typing import Any

from precast._abi.build_info import GUARD_MARK, BuildInfo, HostFile, ManifestError
from precast._abi.capability import DeviceCode, GpuTarget
from precast._abi.torch_abi import CLASSIC_FLOOR, Exact, Stable, TorchAbi
from precast._abi.value import value
from precast._abi.version import Release
from precast._builder import archives, bindings, cpu_code, elf, fatbin, torch_names
from precast.errors import KernelError

NAME = re.compile(
    r"(?P<name>\w+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
_MODULE = re.compile(r"(?P<name>[^.]+)\.(?:(?:cpython-(?P<python>3\d+t?)-[\w-]+|(?P<limited>abi3)(?:-[\w-]+)?)\.)?so")
_LIBRARY = re.compile(r"[^/]+\.so(?:\.\d+)*")
_MANIFEST = re.compile(r"(?:.*/)?_C/build_info\.json")
# "2.9" in torch's own labels: +pt29cu128, +cu130torch2.13, +cu126.torch2.9
_OF_LOCAL = re.compile(r"(?:pt|torch)(\d)\.?(\d+)")
_OF_REQUIREMENT = re.compile(r"torch\s*\(?\s*(?:==|~=)\s*(\d+)\.(\d+)")


@value(frozen=True)
class Library:
    """One shared library. ``python`` is ``"none"``, ``"abi3"``, one such as ``"cp312"``, or ``"unknown"``.

    ``cxx11`` is the C++ ABI of its names from torch; None if none of them shows it. ``error`` says why bytes that
    should be device code or machine code could not be read. ``listed`` is its entry in a manifest of precast.build.
    """

    path: str
    data: bytes
    info: elf.ElfInfo
    bound: bindings.Binding
    module: str
    is_module: bool
    python: str
    cxx11: bool | None
    code: tuple[DeviceCode, ...]
    cpu: cpu_code.CpuUse
    error: str
    listed: HostFile | None = None

    @property
    def needs_torch(self) -> bool:
        """Whether the library uses anything of torch's."""
        linked = any(name.startswith(("libtorch", "libc10")) for name in self.info.needed)
        return bool(self.bound.classic) or linked or bool(self.shims)

    @property
    def shims(self) -> tuple[str, ...]:
        """The functions of torch's stable C interface that it calls."""
        return tuple(sorted(name for name in self.info.undefined if torch_names.SHIM.fullmatch(name)))

    def missing(self) -> dict[Release, tuple[str, ...]]:
        """The names that each recorded torch lacks, oldest torch first."""
        return torch_names.missing(self.info.undefined, cxx11=self.cxx11)

    def abi(self, torch: Exact | None) -> TorchAbi | None:
        """How it is tied to torch. ``torch`` is the one that built it; None is the answer if only that could tell."""
        if not self.needs_torch:
            return Stable(CLASSIC_FLOOR)
        if self.bound.classic or not self.shims:
            return torch
        missing = self.missing()
        have = [release for release, names in missing.items() if not names]
        since = [release for release in have if all(later in have for later in missing if later >= release)]
        return Stable(since[0]) if since else None


@value(frozen=True)
class Contents:
    """Everything that was read: libraries, prebuilt device code behind a manifest, the torch that metadata state."""

    name: str
    libraries: tuple[Library, ...]
    images: tuple[GpuTarget, ...]
    stated: Release | None
    tag: tuple[str, str, str] | None
    version: str
    unread: tuple[tuple[str, str], ...]


def read(path: Path) -> Contents:
    """Read a wheel, a folder or a library. KernelError if there is no library in it, or it cannot be read."""
    if path.suffix != ".whl":
        return _contents(path, path, None)
    match = name_of(path)
    with unpacked(path) as root:
        return _contents(path, root, match)


def name_of(wheel: Path) -> re.Match[str]:
    """The parts of the name of a wheel: name, version, python, abi and platform. KernelError for any other name."""
    match = NAME.fullmatch(wheel.name)
    if match is None:
        raise KernelError(f"{wheel.name} is not the name of a wheel", needed="name-version-python-abi-platform.whl")
    return match


@contextmanager
def opened(wheel: Path) -> Iterator[archives.Zip]:
    """The archive of a wheel. KernelError if it cannot be read."""
    try:
        with archives.open_zip(wheel) as archive:
            yield archive
    except (archives.BadArchive, OSError) as error:
        raise KernelError(f"{wheel} cannot be read as a wheel", found=str(error)) from error


@contextmanager
def unpacked(wheel: Path) -> Iterator[Path]:
    """A temporary folder with the files of a wheel. KernelError if it cannot be read."""
    with tempfile.TemporaryDirectory(prefix="precast-wheel-") as folder:
        with opened(wheel) as archive:
            archive.extract_all(Path(folder))
        yield Path(folder)


def _contents(path: Path, root: Path, match: re.Match[str] | None) -> Contents:
    if not root.exists():
        raise KernelError(f"there is no {root}", needed="a wheel, a folder or a shared library")
    files = {root.name: root} if root.is_file() else dict(_files(root))
    tag = (match["python"], match["abi"], match["platform"]) if match else None
    libraries, unread = [], []
    manifests = {where: _manifest(where, file) for where, file in files.items() if _MANIFEST.fullmatch(where)}
    listed = {one.path: one for where, info in manifests.items() for one in map(_from_root(where), info.host)}
    for where, file in sorted(files.items()):
        known = _LIBRARY.fullmatch(file.name) or where in listed or root.is_file()
        data = file.read_bytes() if known else GUARD_MARK.encode()
        if not data.startswith(GUARD_MARK.encode()):
            try:
                libraries.append(replace(library(where, data, tag), listed=listed.get(where)))
            except elf.ElfError as error:
                unread.append((where, str(error)))
    if not libraries and not unread:
        raise KernelError(f"{path.name} has no shared library", found=f"{len(files)} files, all of them without code")
    images = {image.target for info in manifests.values() for image in info.device}
    version = match["version"] if match else ""
    metadata = b"".join(f.read_bytes() for where, f in files.items() if where.endswith(".dist-info/METADATA"))
    return Contents(
        path.name,
        tuple(libraries),
        tuple(sorted(images, key=lambda target: (target.kind.value, target.capability, target.suffix))),
        stated_torch(version, message_from_bytes(metadata).get_all("Requires-Dist") or ()),
        tag,
        version,
        tuple(unread),
    )


def library(path: str, data: bytes, tag: tuple[str, str, str] | None) -> Library:
    """Read one library. ``tag`` is that of its wheel. ElfError if it is no shared library."""
    info = elf.read_shared_object(data)
    bound = bindings.binding(info)
    named = _MODULE.fullmatch(path.rpartition("/")[2])
    name = named["name"] if named else path.rpartition("/")[2].partition(".")[0]
    code: tuple[DeviceCode, ...] = ()
    cpu, error = cpu_code.CpuUse((), ()), ""
    try:
        cpu = cpu_code.read(data, info.machine, info.undefined)
        sections = elf.read_sections(data, fatbin.SECTIONS).values()
        code = fatbin.read((content for _, content in sections), bound.cudart)
    except (elf.ElfError, fatbin.FatbinError) as broken:
        error = str(broken)
    package = path.rpartition("/")[0].replace("/", ".")
    return Library(
        path,
        data,
        info,
        bound,
        f"{package}.{name}" if package else name,
        f"PyInit_{name}" in info.exported,
        _python(named, bindings.needs_python(name, info, bound), tag),
        _cxx11(bound.classic),
        code,
        cpu,
        error,
    )


def inside(data: bytes, info: elf.ElfInfo) -> dict[str, Any]:
    """The device code and the required processor features of a library, as a manifest lists them.

    ElfError or FatbinError if they cannot be read.
    """
    sections = elf.read_sections(data, fatbin.SECTIONS).values()
    code = fatbin.read((content for _, content in sections), bindings.binding(info).cudart)
    return {"code": code, "cpu": cpu_code.read(data, info.machine, info.undefined).required}


def stated_torch(version: str, requirements: Iterable[str]) -> Release | None:
    """The torch that a wheel says it was built for: in its local version, or by a requirement of one torch."""
    found = _OF_LOCAL.search(version.partition("+")[2])
    for text in requirements:
        found = found or _OF_REQUIREMENT.match(text)
    return None if found is None else Release(int(found[1]), int(found[2]))


def _files(root: Path) -> Iterable[tuple[str, Path]]:
    return ((path.relative_to(root).as_posix(), path) for path in sorted(root.rglob("*")) if path.is_file())


def _manifest(where: str, file: Path) -> BuildInfo:
    try:
        return BuildInfo.from_json(file.read_text(encoding="utf-8"))
    except (ManifestError, UnicodeDecodeError) as error:
        raise KernelError(f"the manifest {where} cannot be read", found=str(error)) from error


def _from_root(manifest: str) -> Callable[[HostFile], HostFile]:
    """Gives an entry of a manifest paths from the root of the wheel, where its library may be in any folder."""

    def path(relative: str) -> str:
        return normpath(f"{manifest.rpartition('/')[0]}/{relative}")

    return lambda one: replace(one, path=path(one.path), links=tuple((name, path(place)) for name, place in one.links))


def _python(named: re.Match[str] | None, needs: bool, tag: tuple[str, str, str] | None) -> str:
    """The Python that a library is for: its file name says it, else the tag of its wheel."""
    if not needs:
        return "none"
    if named is not None and named["python"]:
        return f"cp{named['python']}"
    if (named is not None and named["limited"]) or (tag is not None and tag[1] == "abi3"):
        return "abi3"
    return tag[1] if tag is not None and tag[1].startswith("cp3") and "." not in tag[1] else "unknown"


def _cxx11(classic: Iterable[str]) -> bool | None:
    """The ABI of ``std::string`` in torch's names: ``std::__cxx11::basic_string``, or the abbreviation ``Ss``."""
    names = tuple(classic)
    if any("__cxx11" in name for name in names):
        return True
    return False if any(torch_names.STRING.search(name) for name in names) else None
