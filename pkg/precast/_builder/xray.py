"""Read what any wheel, folder or library needs and holds, from its bytes. Nothing of it is imported or opened.

Facts first: :func:`read` returns them as a value. :mod:`precast._builder.xray_verdict` judges them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from posixpath import normpath
from typing import Any

from precast._builder import archives, bindings, cpu_code, dlopen, elf, fatbin, torch_names, wheel_file
from precast.core import files, pip
from precast.core.capability import CompiledCode, DeviceCode, GpuTarget
from precast.core.manifest import GUARD_MARK, MAX_FILE_BYTES, MAX_MANIFEST_BYTES, BuildInfo, HostFile, ManifestError
from precast.core.reader import NewerManifest
from precast.core.torch_abi import CLASSIC_FLOOR, Exact, Stable, TorchAbi
from precast.core.value import value
from precast.core.version import Release
from precast.errors import KernelError

NAME = re.compile(
    r"(?P<name>[\w.]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
_MODULE = re.compile(r"(?P<name>[^.]+)\.(?:(?:cpython-(?P<python>3\d+t?)-[\w-]+|(?P<limited>abi3)(?:-[\w-]+)?)\.)?so")
_LIBRARY = re.compile(r"[^/]+\.so(?:\.\d+)*")
_MANIFEST = re.compile(r"(?:.*/)?_C/build_info\.json")
# "2.9" in torch's own labels: +pt29cu128, +cu130torch2.13, +cu126.torch2.9
_OF_LOCAL = re.compile(r"(?:pt|torch)(\d)\.?(\d+)")
# A folder or a file of a library for one torch: torch-2.10, libops_pt2.9.so, ops_torch211
_OF_PATH = re.compile(r"(?<![a-z])(?:pt|(?:py)?torch)[-_.]?([12])[._]?(\d{1,2})(?!\d)")
_OF_REQUIREMENT = re.compile(r"torch\s*\(?\s*(?:==|~=)\s*(\d+)\.(\d+)")


@value(frozen=True)
class Library:
    """One shared library. ``python`` is ``"none"``, ``"abi3"``, one such as ``"cp312"``, or ``"unknown"``.

    ``cxx11`` is the C++ ABI of its names from torch; None if none of them shows it. ``error`` says why bytes that
    should be device code or machine code could not be read. ``opening`` is what the dynamic loader says to its headers,
    ``listed`` its entry in a manifest of precast.build, ``stated`` the torch that its path names. ``provided`` has the
    names that other libraries of the wheel give it.
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
    opening: dlopen.Opening = dlopen.Opening()
    listed: HostFile | None = None
    stated: Release | None = None
    provided: frozenset[str] = frozenset()
    compiled: tuple[CompiledCode, ...] = ()

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
        return torch_names.missing(self.info.undefined - self.provided, cxx11=self.cxx11)

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
    """Everything that was read: libraries, manifests by their folders, the torch that metadata state."""

    name: str
    libraries: tuple[Library, ...]
    manifests: tuple[tuple[str, BuildInfo], ...]
    stated: Release | None
    tag: tuple[str, str, str] | None
    version: str
    unread: tuple[tuple[str, str], ...]

    @property
    def images(self) -> tuple[GpuTarget, ...]:
        """The targets of the prebuilt device code behind a manifest."""
        found = {image.target for _, info in self.manifests for image in info.device}
        return tuple(sorted(found, key=lambda target: (target.kind.value, target.capability, target.suffix)))


@value(frozen=True)
class _File:
    """A file that can be read, and the size that it claims."""

    size: int
    read: Callable[[], bytes]


def read(path: Path) -> Contents:
    """Read a wheel, a folder or a library. KernelError if there is no library in it, or it cannot be read.

    Nothing is unpacked to a disk.
    """
    if path.suffix != ".whl":
        return _contents(path, dict(_on_disk(path)), None)
    match = name_of(path)
    with opened(path) as archive:
        packed = {one.filename: _File(one.file_size, partial(archive.read, one)) for one in archive.files}
        return _contents(path, packed, match)


def name_of(wheel: Path) -> re.Match[str]:
    """The parts of the name of a wheel: name, version, python, abi and platform. KernelError for any other name."""
    match = NAME.fullmatch(wheel.name)
    if match is None:
        raise KernelError(
            f"{wheel} cannot be read as a wheel",
            found=f"the file name {wheel.name}",
            needed="a file name like name-version-python-abi-platform.whl",
            fix="rename the file to the name that its build gave it: pip cannot install it under another",
        )
    return match


@contextmanager
def opened(wheel: Path) -> Iterator[archives.Zip]:
    """The archive of a wheel. KernelError if it cannot be read."""
    try:
        with archives.open_zip(wheel) as archive:
            yield archive
    except (archives.BadArchive, OSError) as error:
        raise KernelError(
            f"{wheel} cannot be read as a wheel",
            found=str(error),
            needed="a complete ZIP archive",
            fix="download or build the wheel again",
        ) from error


@contextmanager
def unpacked(wheel: Path) -> Iterator[Path]:
    """A temporary folder with the files of a wheel. KernelError if it cannot be read."""
    with tempfile.TemporaryDirectory(prefix="precast-wheel-") as folder:
        with opened(wheel) as archive:
            archive.extract_all(Path(folder))
        yield Path(folder)


def _on_disk(root: Path) -> Iterator[tuple[str, _File]]:
    if not root.exists():
        raise KernelError(
            f"{root} cannot be read",
            found="no file or folder of that name",
            needed="a wheel, a folder or a shared library",
            fix="name a wheel, a folder or a shared library that exists",
        )
    for path in sorted(root.rglob("*")) if root.is_dir() else (root,):
        if path.is_file():
            where = path.name if path == root else path.relative_to(root).as_posix()
            yield where, _File(path.stat().st_size, partial(files.read, path, MAX_FILE_BYTES))


def _contents(path: Path, held: Mapping[str, _File], match: re.Match[str] | None) -> Contents:
    tag = (match["python"], match["abi"], match["platform"]) if match else None
    manifests = {where: _manifest(where, file) for where, file in held.items() if _MANIFEST.fullmatch(where)}
    listed = {one.path: one for where, info in manifests.items() for one in map(_from_root(where), info.host)}
    alone = len(held) == 1  # what the caller named
    named = {w: f for w, f in sorted(held.items()) if alone or w in listed or _LIBRARY.fullmatch(w.rpartition("/")[2])}
    size = sum(file.size for file in named.values())
    if size > MAX_FILE_BYTES:
        raise KernelError(
            f"{path.name} is too large to be read",
            found=f"{size / 1e9:.1f} GB in {len(named)} files",
            needed=f"libraries of at most {MAX_FILE_BYTES / 1e9:.1f} GB together",
            fix="repeat the command with one of the libraries (unzip a wheel first)",
        )
    libraries, unread = [], []
    for where, file in named.items():
        found = _library(where, file, tag)
        if isinstance(found, Library):
            libraries.append(replace(found, listed=listed.get(where)))
        elif found is not None:
            unread.append((where, found))
    if not (libraries or unread or any(info.device for info in manifests.values())):
        raise KernelError(
            f"{path.name} has no shared library",
            found=f"{len(held)} files, all of them without code",
            needed="at least one .so file",
            fix="none: a wheel without libraries fits every torch",
        )
    version = match["version"] if match else ""
    metadata = b"".join(_text(w, file) for w, file in held.items() if w.endswith(".dist-info/METADATA"))
    return Contents(
        path.name,
        tuple(_with_provided(libraries)),
        tuple((where.rpartition("/")[0], info) for where, info in manifests.items()),
        stated_torch(version, wheel_file.headers(metadata).get_all("Requires-Dist") or ()),
        tag,
        version,
        tuple(unread),
    )


def _library(where: str, file: _File, tag: tuple[str, str, str] | None) -> Library | str | None:
    """A library, or why it cannot be read; None for a guard, the short text in the place of a library."""
    try:
        data = file.read()
        return None if data.startswith(GUARD_MARK.encode()) else library(where, data, tag)
    except (elf.ElfError, OSError) as error:
        return str(error)


def _with_provided(libraries: list[Library]) -> Iterator[Library]:
    """The libraries, each with the names that others of the wheel define for it."""
    defined: dict[str, set[str]] = {}
    for one in libraries:
        for name in one.info.exported:
            defined.setdefault(name, set()).add(one.path)
    for one in libraries:
        others = (name for name in one.info.undefined if defined.get(name, set()) - {one.path})
        yield replace(one, provided=frozenset(others))


def library(path: str, data: bytes, tag: tuple[str, str, str] | None) -> Library:
    """Read one library. ``tag`` is that of its wheel. ElfError if it is no shared library."""
    info = elf.read_shared_object(data)
    bound = bindings.binding(info)
    named, of_torch = _MODULE.fullmatch(path.rpartition("/")[2]), _OF_PATH.search(path)
    name = named["name"] if named else path.rpartition("/")[2].partition(".")[0]
    code: tuple[DeviceCode, ...] = ()
    compiled: tuple[CompiledCode, ...] = ()
    cpu, error = cpu_code.CpuUse((), ()), ""
    try:
        cpu = cpu_code.read(data, info.machine, info.undefined)
        sections = [content for _, content in elf.read_sections(data, fatbin.SECTIONS).values()]
        code, compiled = fatbin.read(sections, bound.cudart), fatbin.compiled(sections)
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
        dlopen.read(data, info.versions),
        stated=None if of_torch is None else Release(int(of_torch[1]), int(of_torch[2])),
        compiled=compiled,
    )


def inside(data: bytes, info: elf.ElfInfo) -> dict[str, Any]:
    """The device code of a library, its compilers and the required processor features, as a manifest lists them.

    ElfError or FatbinError if they cannot be read.
    """
    sections = [content for _, content in elf.read_sections(data, fatbin.SECTIONS).values()]
    code, compiled = fatbin.read(sections, bindings.binding(info).cudart), fatbin.compiled(sections)
    return {"code": code, "compiled": compiled, "cpu": cpu_code.read(data, info.machine, info.undefined).required}


def stated_torch(version: str, requirements: Iterable[str]) -> Release | None:
    """The torch that a wheel says it was built for: in its local version, or by a requirement of one torch."""
    found = _OF_LOCAL.search(version.partition("+")[2])
    for text in requirements:
        found = found or _OF_REQUIREMENT.match(text)
    return None if found is None else Release(int(found[1]), int(found[2]))


def _text(where: str, file: _File) -> bytes:
    if file.size > MAX_MANIFEST_BYTES:
        raise KernelError(
            f"{where} is too large",
            found=f"{file.size} bytes",
            needed=f"at most {MAX_MANIFEST_BYTES} bytes",
            fix="download or build the wheel again",
        )
    try:
        return file.read()
    except OSError as error:
        raise KernelError(
            f"{where} cannot be read",
            found=str(error),
            needed="the metadata that the build wrote",
            fix="download or build the wheel again",
        ) from error


def _manifest(where: str, file: _File) -> BuildInfo:
    try:
        return BuildInfo.from_json(_text(where, file).decode())
    except (ManifestError, UnicodeDecodeError) as error:
        needed, fix = "a manifest that a build wrote", "download or build the wheel again"
        if isinstance(error, NewerManifest):
            needed = f"precast{error.readers or ' of a later version'}, which reads this manifest"
            fix = f"{pip.install_command()} -U 'precast{error.readers}'"
        raise KernelError(f"the manifest {where} cannot be read", found=str(error), needed=needed, fix=fix) from error


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
