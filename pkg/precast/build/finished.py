"""Read a finished wheel of any build system: its libraries as manifest entries, and the rest of its files."""

from __future__ import annotations

import posixpath
import re
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from precast._builder import torch_names, xray, xray_verdict
from precast.build import alone, facts, linked, wheel
from precast.build.stated import NOTHING, Stated, is_classic, without_old
from precast.core import opening, verify
from precast.core.manifest import BuildInfo, DeviceFile, HostFile, HostKind
from precast.core.opening import inside
from precast.core.torch_abi import CLASSIC_FLOOR, Exact
from precast.core.version import Label, TorchVersion
from precast.errors import KernelError

SUFFIX = ".guarded"  # of a library in its own folder: nothing that looks for libraries or modules takes it for one
_LABEL = re.compile(r"(cu\d{3,4}|cpu)(?![0-9])")
# What a wheel says of itself; written again for the guarded wheel, but for signatures.
OWN = ("METADATA", "WHEEL", "RECORD", "RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class Folder:
    """The prebuilt files of one package: manifest entries, and the content of each file by its path in the folder."""

    hosts: tuple[HostFile, ...]
    device: tuple[DeviceFile, ...]
    data: dict[str, bytes]


@dataclass(frozen=True)
class Finished:
    """One wheel. ``folders`` maps the folder of each manifest to its files, ``rest`` has everything else.

    ``local`` is the local part of the version: ``cu130.torch2.13``, or empty. ``left`` has
    the libraries that stay as they are, because neither import nor torch opens them. ``old`` has the libraries that are
    left out, because precast does not support their torch. ``build`` and ``python`` are parts of the wheel's name,
    ``programs`` the files that installers make executable.
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
    old: tuple[xray.Library, ...] = ()
    build: str = ""
    python: str = ""
    programs: frozenset[str] = frozenset()

    @property
    def dist_info(self) -> str:
        """The folder of the metadata."""
        return f"{self.name}-{self.version}.dist-info"


def read(path: Path, stated: Stated) -> Finished:
    """Read a wheel; ``stated`` names the torch that built its libraries, if the wheel does not name it.

    KernelError for a library that no guard can stand for, and for one whose torch is not known.
    """
    contents, outdated = without_old(stated.told(xray.read(path)))
    contents = replace(contents, name=shlex.quote(str(path)))  # quoted, because commands offered as fixes contain it
    for library in contents.libraries:
        if xray_verdict.is_foreign(PurePosixPath(library.path).name):
            raise _bad(library, "a copy of torch's, CUDA's or OpenMP's own library",
                       "the wheel before it was put in: auditwheel repair has --exclude for that")  # fmt: skip
        if ".data" in (top := library.path.partition("/")[0]):
            raise _bad(library, f"a library below {top}", "the library in the folder of a package")
    contents = linked.findable(contents)
    match = xray.name_of(path)
    files, programs = _files(path)
    for name in OWN[:2]:
        if f"{match['name']}-{contents.version}.dist-info/{name}" not in files:
            raise KernelError(
                f"{path} is not a wheel",
                found=f"no {name} in it",
                needed=f"{name} in the .dist-info folder of the wheel",
                fix="build the wheel again",
            )
    manifests = _manifests(files)
    default = manifests[0][1].label if manifests else Label("")
    labels = {_label(contents.version, stated.of(one.path), default) for one in contents.libraries}
    label = labels.pop() if len(labels) == 1 else default
    made = Finished(path, match["name"], contents.version, match["platform"], label, {})
    taken = {one.path for one in outdated}
    for folder, info, listed in manifests:
        paths = {file.path: _placed(file) for file in info.host}
        hosts = [
            replace(file, path=paths[file.path], links=tuple((name, paths[place]) for name, place in file.links))
            for file in info.host
        ]
        data = {paths.get(where, where): files[at(folder, where)] for where in listed}
        made.folders[folder] = Folder(tuple(hosts), info.device, data)
        taken |= {at(folder, where) for where in (verify.MANIFEST, *listed)}
    libraries = [one for one in contents.libraries if one.path not in taken]
    guards = {one.path: _places(one)[1] for one in libraries if one.is_module or one.needs_torch}
    moved = {one.path for library in libraries if library.path in guards for one in linked.by(library, libraries)}
    left = [one for one in libraries if one.path not in moved | guards.keys()]
    if not guards and not manifests:
        found = f"{_shown(left)}, which neither import nor torch opens"
        raise KernelError(
            f"{path.name} has nothing to guard",
            found=found,
            needed="a Python module, or a library that registers ops of torch",
            fix="none: publish the wheel as it is",
        )
    for library in libraries:
        _refuse_opened_by_code(library, [one for one in libraries if one.path in guards])
    stay = {one.path for library in left for one in _left(library, libraries, guards)}
    libraries = [one for one in libraries if one not in left]
    taken |= {one.path for one in libraries} - stay
    before = {where for where, data in files.items() if _is_guard(data)}
    rest = alone.without_copies({where: data for where, data in files.items() if where not in taken | before})
    _refuse_two_meanings(path, set(guards.values()), rest)
    for folder, entries in _folders(contents, libraries, guards, stated, default).items():
        old = made.folders.get(folder, Folder((), (), {}))
        data = old.data | {entry.path: library.data for library, entry in entries}
        made.folders[folder] = Folder((*old.hosts, *(entry for _, entry in entries)), old.device, data)
    hosts = [file for folder in made.folders.values() for file in folder.hosts]
    bound = {file.abi.release for file in hosts if isinstance(file.abi, Exact)}
    local = wheel.local_of(label, bound.pop()) if stated != NOTHING and label.text and len(bound) == 1 else ""
    return replace(
        made,
        rest=rest,
        build=match[3] or "",
        python=match["python"],
        programs=programs & rest.keys(),
        guards=frozenset({*guards.values(), *before}),
        local=contents.version.partition("+")[2] or local,
        old=outdated,
        left=tuple(replace(facts.entry(one, None, label), path=one.path) for one in left),
    )


def at(folder: str, path: str) -> str:
    """The path in the wheel, from a path in the manifest of ``folder``."""
    return posixpath.normpath(f"{folder}/{path}")


def _files(path: Path) -> tuple[dict[str, bytes], frozenset[str]]:
    """The files of a wheel, and which of them are executable."""
    with xray.opened(path) as archive:
        programs = frozenset(member.filename for member in archive.files if _is_program(member))
        return {member.filename: archive.read(member) for member in archive.files}, programs


def _is_guard(data: bytes) -> bool:
    """Whether a file is a guard of an earlier run, which is written again."""
    return wheel.is_guard(data[:200].decode("utf-8", "replace"))


def _is_program(member: zipfile.ZipInfo) -> bool:
    return bool(member.external_attr >> 16 & 0o111)


def _manifests(files: dict[str, bytes]) -> list[tuple[str, BuildInfo, tuple[str, ...]]]:
    """The manifests of a wheel that precast.build made, each with its folder and the files it lists."""
    found = []
    for where in sorted(files):
        folder, _, name = where.rpartition("/")
        if name == verify.MANIFEST and folder.rpartition("/")[2] == "_C":
            info = BuildInfo.from_json(files[where].decode())
            found.append((folder, info, tuple(info.files)))
    return found


def _label(version: str, torch: TorchVersion | None, default: Label) -> Label:
    """The CUDA label of a library: of the torch that built it, or of the local version of its wheel."""
    found = _LABEL.search((torch.local or "") if torch is not None and torch.local else version.partition("+")[2])
    return Label(found[1]) if found else default


def _places(library: xray.Library) -> tuple[str, str]:
    """The folder of the manifest of a library, and the path that its guard takes.

    The guard of a Python module is a Python file. The guard of any other library keeps the suffix, because packages
    look for it with a finder of extension modules. A module outside of packages becomes a package of its name.
    """
    package = posixpath.dirname(library.path)  # also torch-2.10/lib, which has a dot
    name = opening.name_of(PurePosixPath(library.path).name)
    if not package and not library.is_module:
        raise _bad(library, "ops of torch at the top of the wheel, in no package", "a package that holds the library")
    if not package:
        return f"{name}/_C", f"{name}/__init__.py"
    folder = "/".join([package, *inside(package.replace("/", "."))])
    return folder, f"{package}/{name}{'.py' if library.is_module else '.so'}"


def _folders(
    contents: xray.Contents, libraries: list[xray.Library], guards: Mapping[str, str], stated: Stated, default: Label,
) -> dict[str, list[tuple[xray.Library, HostFile]]]:  # fmt: skip
    """The libraries in the folder of each manifest, with their entries.

    Helpers are in each folder that needs them. A guarded library is in the folder of the package that links it.
    """
    alone = {one.path: _entry(contents, one, stated, default, helper=one.path not in guards) for one in libraries}
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
                    raise _bad(library, f"a link to {one.path} of another package", "both libraries in one package")
                names = tuple((other.info.soname or "", _beside(other, alone, folder)) for other in links[one.path])
                entry = replace(alone[one.path], path=_beside(one, alone, folder), links=names)
                found.setdefault(folder, {})[one.path] = one, entry
    return {folder: list(entries.values()) for folder, entries in found.items()}


def _entry(contents: xray.Contents, library: xray.Library, stated: Stated, default: Label, *, helper: bool) -> HostFile:
    """The manifest entry of a library. KernelError for one that no guard can stand for."""
    torch = stated.of(library.path)
    label = _label(contents.version, torch, default)
    if library.python == "unknown":
        raise _bad(library, "Python's C API, but no Python version in its name or tag", "a tag such as cp312")
    if library.bound.cudart is None and library.bound.torch_cuda and label.cuda is None:
        fix = f"python -m precast.build guard --torch {torch or '2.13.0'}+cu130 {contents.name} -o out"
        raise _bad(
            library,
            "torch's CUDA libraries, of an unknown CUDA version",
            "the CUDA version of the torch that built it",
            fix,
        )
    file = facts.entry(library, _built_by(contents, library, torch), label)
    if helper:
        name = f"{file.sha256[:8]}.{PurePosixPath(library.path).name}"
        return replace(file, kind=HostKind.LINKED, families=(), path=name)
    file = replace(file, families=(opening.name_of(PurePosixPath(library.path).name),))
    return replace(file, path=_placed(file).removeprefix("host/").removesuffix(".so"))


def _beside(library: xray.Library, entries: Mapping[str, HostFile], folder: str) -> str:
    """The path of a library from the folder of a manifest. It keeps its own folder, so that ``$ORIGIN`` stays."""
    own = posixpath.dirname(library.path) or "."
    path = posixpath.relpath(f"{own}/{entries[library.path].path}{SUFFIX}", folder)
    return path if path.startswith("../") else f"../{posixpath.basename(folder)}/{path}"


def _placed(file: HostFile) -> str:
    """A path that no other library of a merged wheel has."""
    if file.kind is HostKind.LINKED or file.path.startswith("../"):
        return file.path
    python, cuda = file.python if file.python != "none" else "", f"cu{file.cuda_major}" if file.cuda_major else ""
    parts = [file.families[0], str(file.abi), python, cuda, file.sha256[:8], "so"]
    return f"host/{'.'.join(filter(None, parts))}"


def _refuse_opened_by_code(library: xray.Library, guarded: list[xray.Library]) -> None:
    """Refuse to put a guard in the place of a file that C code opens by its name: ``dlopen`` takes no guard."""
    for one in guarded:
        name = PurePosixPath(one.path).name
        linked_or_same = one.data == library.data or one.info.soname in library.info.needed
        marks = (b"/",) if library.info.soname == name else (b"\0", b"/")  # its own SONAME opens nothing
        if not linked_or_same and any(mark + name.encode() + b"\0" in library.data for mark in marks):
            found = f"its file name in {library.path}, as code has that opens it with dlopen"
            raise _bad(one, found, "a library that only import or torch.ops.load_library opens")


def _left(library: xray.Library, libraries: list[xray.Library], guards: Mapping[str, str]) -> list[xray.Library]:
    """A library that neither import nor torch opens, and those that it links: they stay as they are."""
    links = linked.by(library, libraries)
    moved = [one.path for one in links if one.path in guards]
    if moved:
        raise _bad(library, f"a link to {moved[0]}, which a guard replaces", "a library that a Python module links")
    if library.python != "none":
        raise _bad(library, "Python's C API, but no PyInit", "a Python module, which has a PyInit function")
    return [library, *links]


def _shown(libraries: list[xray.Library]) -> str:
    more = f" and {len(libraries) - 3} more" if len(libraries) > 3 else ""
    return ", ".join(one.path for one in libraries[:3]) + more


def _built_by(contents: xray.Contents, library: xray.Library, torch: TorchVersion | None) -> Exact | None:
    """The torch that built a library with classic C++: the given or stated one, or the only one with all names."""
    if not is_classic(library):
        return None
    missing = library.missing()
    fitting = [release for release, names in missing.items() if not names]
    release = library.stated or (torch.release if torch is not None else contents.stated)
    if release is None and len(fitting) == 1:
        release = fitting[0]
    if release is None:
        found = f"the C++ API of torch {' or '.join(map(str, fitting)) or '(release unknown)'}"
        fix = f"python -m precast.build guard --torch {fitting[-1] if fitting else '2.13'} {contents.name} -o out"
        raise _bad(library, found, "the torch that built it", fix)
    if missing.get(release):
        found = f"{missing[release][0]}, which torch {release} does not have"
        given = shlex.quote(f"{library.path}={fitting[-1]}") if fitting else ""
        fix = f"python -m precast.build guard --torch {given} {contents.name} -o out" if fitting else ""
        raise _bad(library, found, f"torch {', '.join(map(str, fitting)) or 'of another release'}", fix)
    if release < CLASSIC_FLOOR:
        raise _bad(library, f"a build for torch {release}", f"a build for torch {CLASSIC_FLOOR} or newer")
    default = next((one.cxx11 for one in torch_names.recorded() if one.release == release), True)
    return Exact(release, default if library.cxx11 is None else library.cxx11)


def _refuse_two_meanings(path: Path, guards: set[str], rest: dict[str, bytes]) -> None:
    for guard in sorted(guards & set(rest)):
        if not wheel.is_guard(rest[guard].decode("utf-8", "replace")):
            raise KernelError(
                f"{path.name} has no room for the guard {guard}",
                found="another file of that name in the wheel",
                needed="no other file there",
                fix="rename that file or the library, and build again",
            )


def _bad(library: xray.Library, found: str, needed: str, fix: str = "") -> KernelError:
    fix = fix or "build the wheel again as needed above"
    return KernelError(f"{library.path} cannot be guarded", found=found, needed=needed, fix=fix)
