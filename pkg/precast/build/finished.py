"""Read a finished wheel of any build system: its libraries as manifest entries, and the rest of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from precast._abi.build_info import BuildInfo, DeviceFile, HostFile, HostKind
from precast._abi.label import Label
from precast._abi.torch_abi import CLASSIC_FLOOR, Exact
from precast._abi.version import TorchVersion
from precast._builder import archives, torch_names, xray, xray_verdict
from precast._load import answers, prebuilt
from precast._load.downstream import inside
from precast.build import facts, linked, wheel
from precast.errors import KernelError

_LABEL = re.compile(r"(cu\d{3,4}|cpu)(?![0-9])")
# What a wheel says of itself; written again for the guarded wheel.
OWN = ("METADATA", "WHEEL", "RECORD")


@dataclass(frozen=True)
class Folder:
    """The prebuilt files of one package: manifest entries, and the content of each file by its path in the folder."""

    hosts: tuple[HostFile, ...]
    device: tuple[DeviceFile, ...]
    data: dict[str, bytes]


@dataclass(frozen=True)
class Finished:
    """One wheel. ``folders`` maps the folder of each manifest to its files, ``rest`` has everything else.

    ``local`` is what its version says of the torch that it is bound to: ``cu130.torch2.13``, or nothing. ``left`` has
    the libraries that stay as they are, because nothing but ctypes can open them.
    """

    path: Path
    name: str
    version: str
    platform: str
    label: Label
    rest: dict[str, bytes]
    folders: dict[str, Folder] = field(default_factory=dict)
    guards: frozenset[str] = frozenset()
    local: str = ""
    left: tuple[HostFile, ...] = ()

    @property
    def dist_info(self) -> str:
        """The folder of the metadata."""
        return f"{self.name}-{self.version}.dist-info"


def read(path: Path, torch: TorchVersion | None) -> Finished:
    """Read a wheel; ``torch`` is the one that built it, if the wheel does not say so.

    KernelError for a library that no guard can stand for, and for one whose torch is not known.
    """
    contents = xray.read(path)
    for library in contents.libraries:
        if xray_verdict.is_foreign(PurePosixPath(library.path).name):
            raise _bad(library, "a copy of torch's, CUDA's or OpenMP's own library", "a wheel without it",
                       f"auditwheel repair --exclude 'libtorch*' --exclude 'libcu*' {contents.name}")  # fmt: skip
    contents = linked.findable(contents)
    match = xray.name_of(path)
    files = _files(path)
    for name in OWN[:2]:
        if f"{match['name']}-{contents.version}.dist-info/{name}" not in files:
            raise KernelError(f"{path} is not a wheel", found=f"no {name} in it", needed="one in its .dist-info")
    manifests = _manifests(files)
    label = _label(contents.version, torch)
    if not label.text and manifests:
        label = manifests[0][1].label
    made = Finished(path, match["name"], contents.version, match["platform"], label, {})
    taken = set[str]()
    for folder, info, listed in manifests:
        paths = {file.path: _placed(file) for file in info.host}
        hosts = [
            replace(file, path=paths[file.path], links=tuple((name, paths[place]) for name, place in file.links))
            for file in info.host
        ]
        data = {paths.get(where, where): files[f"{folder}/{where}"] for where in listed}
        made.folders[folder] = Folder(tuple(hosts), info.device, data)
        taken |= {f"{folder}/{prebuilt.MANIFEST}", *(f"{folder}/{where}" for where in listed)}
    libraries = [one for one in contents.libraries if one.path not in taken]
    guards = {one.path: _places(one)[1] for one in libraries if one.is_module or one.needs_torch}
    moved = {one.path for library in libraries if library.path in guards for one in linked.by(library, libraries)}
    left = [one for one in libraries if one.path not in moved | guards.keys()]
    if not guards and not manifests:
        found = f"{_shown(left)}, which neither import nor torch opens"
        raise KernelError(f"{path.name} has nothing to guard", found=found, needed="a Python module, or ops of torch")
    stay = {one.path for library in left for one in _left(library, libraries, guards)}
    libraries = [one for one in libraries if one not in left]
    taken |= {one.path for one in libraries} - stay
    rest = {where: data for where, data in files.items() if where not in taken}
    _refuse_two_meanings(path, set(guards.values()), rest)
    for folder, entries in _folders(contents, libraries, guards, torch, label).items():
        old = made.folders.get(folder, Folder((), (), {}))
        data = old.data | {entry.path: library.data for library, entry in entries}
        made.folders[folder] = Folder((*old.hosts, *(entry for _, entry in entries)), old.device, data)
    bound = any(isinstance(file.abi, Exact) for folder in made.folders.values() for file in folder.hosts)
    local = wheel.local_of(label, torch.release) if torch is not None and label.text and bound else ""
    return replace(
        made,
        rest=rest,
        guards=frozenset(guards.values()),
        local=contents.version.partition("+")[2] or local,
        left=tuple(replace(facts.entry(one, None, label), path=one.path) for one in left),
    )


def _files(path: Path) -> dict[str, bytes]:
    with archives.open_zip(path) as archive:
        return {member.filename: archive.read(member) for member in archive.files}


def _manifests(files: dict[str, bytes]) -> list[tuple[str, BuildInfo, tuple[str, ...]]]:
    """The manifests of a wheel that precast.build made, each with its folder and the files it lists."""
    found = []
    for where in sorted(files):
        folder, _, name = where.rpartition("/")
        if name == prebuilt.MANIFEST and folder.rpartition("/")[2] == "_C":
            info = BuildInfo.from_json(files[where].decode())
            found.append((folder, info, tuple(info.files)))
    return found


def _label(version: str, torch: TorchVersion | None) -> Label:
    """The CUDA label of a wheel: of the torch that built it, or of its own local version."""
    found = _LABEL.search((torch.local or "") if torch is not None and torch.local else version.partition("+")[2])
    return Label(found[1] if found else "")


def _places(library: xray.Library) -> tuple[str, str]:
    """The folder of the manifest of a library, and the path that its guard takes.

    A Python module leaves a Python file. Any other library leaves a file of its own kind, because packages look for it
    with a finder of extension modules. A module of no package becomes a package of its name.
    """
    package, _, _ = library.module.rpartition(".")
    name = answers.name_of(PurePosixPath(library.path).name)
    if not package and library.is_module:
        return f"{name}/_C", f"{name}/__init__.py"
    folder = "/".join([*package.split("."), *inside(package)]) if package else "_C"
    return folder, f"{package.replace('.', '/')}/{name}{'.py' if library.is_module else '.so'}"


def _folders(
    contents: xray.Contents, libraries: list[xray.Library], guards: Mapping[str, str], torch: TorchVersion | None,
    label: Label,
) -> dict[str, list[tuple[xray.Library, HostFile]]]:  # fmt: skip
    """The libraries in the folder of each manifest, with their entries.

    Helpers are in each folder that needs them. A guarded library is in the folder of the package that links it.
    """
    alone = {one.path: _entry(contents, one, torch, label, helper=one.path not in guards) for one in libraries}
    links = {one.path: linked.by(one, libraries) for one in libraries}
    places = {one.path: _places(one)[0] for one in libraries if one.path in guards}
    for library in libraries:
        for one in links[library.path] if library.path in guards else ():
            inside_of = places[library.path].removesuffix("_C")
            for copy in (other for other in libraries if other.data == one.data and other.path in guards):
                if not copy.is_module and copy.path.startswith(inside_of or "/"):
                    places[copy.path] = places[library.path]
    found: dict[str, dict[str, tuple[xray.Library, HostFile]]] = {}
    for library in libraries:
        if library.path in guards:
            folder = places[library.path]
            for one in (*links[library.path], library):
                if places.get(one.path, folder) != folder:
                    raise _bad(library, f"that it links {one.path}, of another package", "both in one package")
                names = tuple((other.info.soname or "", alone[other.path].path) for other in links[one.path])
                found.setdefault(folder, {})[one.path] = one, replace(alone[one.path], links=names)
    return {folder: list(entries.values()) for folder, entries in found.items()}


def _entry(
    contents: xray.Contents, library: xray.Library, torch: TorchVersion | None, label: Label, *, helper: bool
) -> HostFile:
    """The manifest entry of a library. KernelError for one that no guard can stand for."""
    if library.python == "unknown":
        raise _bad(library, "Python's functions, and no Python in its name or tag", "a wheel for one Python")
    if library.bound.cudart is None and library.bound.torch_cuda and label.cuda is None:
        fix = f"python -m precast.build guard --torch {torch or '2.13.0'}+cu130 {contents.name} -o out"
        raise _bad(library, "torch's CUDA libraries, and nothing says of which CUDA", "its CUDA version", fix)
    file = facts.entry(library, _built_by(contents, library, torch), label)
    if helper:
        return replace(file, kind=HostKind.LINKED, families=(), path=f"host/{file.sha256[:8]}.{library.info.soname}")
    file = replace(file, families=(answers.name_of(PurePosixPath(library.path).name),))
    return replace(file, path=_placed(file))


def _placed(file: HostFile) -> str:
    """A path that no other library of a merged wheel has."""
    if file.kind is HostKind.LINKED:
        return file.path
    python, cuda = file.python if file.python != "none" else "", f"cu{file.cuda_major}" if file.cuda_major else ""
    parts = [file.families[0], str(file.abi), python, cuda, file.sha256[:8], "so"]
    return f"host/{'.'.join(filter(None, parts))}"


def _left(library: xray.Library, libraries: list[xray.Library], guards: Mapping[str, str]) -> list[xray.Library]:
    """A library that only ctypes can open, and those that it links: they stay where they are."""
    links = linked.by(library, libraries)
    moved = [one.path for one in links if one.path in guards]
    if moved:
        raise _bad(library, f"that it links {moved[0]}, which gets a guard", "a library that a module links")
    if library.python != "none":
        raise _bad(library, "Python's functions, and no PyInit", "a Python module")
    return [library, *links]


def _shown(libraries: list[xray.Library]) -> str:
    more = f" and {len(libraries) - 3} more" if len(libraries) > 3 else ""
    return ", ".join(one.path for one in libraries[:3]) + more


def _built_by(contents: xray.Contents, library: xray.Library, torch: TorchVersion | None) -> Exact | None:
    """The torch that built a library with classic C++: the given or stated one, or the only one with all names."""
    if not library.needs_torch or (library.shims and not library.bound.classic):
        return None
    missing = library.missing()
    fitting = [release for release, names in missing.items() if not names]
    release = library.stated or (torch.release if torch is not None else contents.stated)
    if release is None and len(fitting) == 1:
        release = fitting[0]
    if release is None:
        found = f"classic C++ that torch {', '.join(map(str, fitting)) or 'of the table'} may have built"
        fix = f"python -m precast.build guard --torch {fitting[-1] if fitting else '2.13'} {contents.name} -o out"
        raise _bad(library, found, "the torch that built it", fix)
    if missing.get(release):
        found = f"{missing[release][0]}, which torch {release} does not have"
        raise _bad(library, found, f"torch {', '.join(map(str, fitting)) or 'of another release'}")
    if release < CLASSIC_FLOOR:
        raise _bad(library, f"a build for torch {release}", f"one for torch {CLASSIC_FLOOR} or newer")
    default = next((one.cxx11 for one in torch_names.recorded() if one.release == release), True)
    return Exact(release, default if library.cxx11 is None else library.cxx11)


def _refuse_two_meanings(path: Path, guards: set[str], rest: dict[str, bytes]) -> None:
    for guard in sorted(guards & set(rest)):
        if not wheel.is_guard(rest[guard].decode("utf-8", "replace")):
            raise KernelError(
                f"{path.name} has two meanings of {guard}",
                found="a file of that name next to a library",
                needed="one of them under another name",
            )


def _bad(library: xray.Library, found: str, needed: str, fix: str = "") -> KernelError:
    return KernelError(f"{library.path} cannot be guarded", found=found, needed=needed, fix=fix)
