"""Audit a finished wheel: compare every entry of its manifest with the bytes of the file.

The audit checks what the loader will check after installation. It also checks what an index and an installer read:
the tag, the version, the requirements and RECORD, and that no wheel writes into the packages of another. A wheel
without a violation is then imported, in a child process. Nothing of a wheel is executed before that.
"""

from __future__ import annotations

import base64
import hashlib
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from precast._builder import bindings, elf, fatbin, packing, wheel_file, xray, xray_problems, xray_verdict
from precast._load import prebuilt
from precast.build import alone, answering, calls, described, finished, ownership, trial, wheel
from precast.core import verify
from precast.core.manifest import BuildInfo, DeviceFile, HostFile, HostKind, by_file
from precast.core.opening import FOLDER
from precast.core.reasons import Rejection
from precast.core.torch_abi import AbiKind
from precast.errors import KernelError

_GUARD_BYTES = 4096  # more than a guard has
REQUIRES = re.compile(r"(?m)^(?:Requires-Dist: )?precast\b(?![\w.-])", re.IGNORECASE)


def report(paths: Sequence[Path]) -> int:
    """Print the verdict and the violations of each wheel; return 1 if there is a violation.

    The guards of a wheel without violations are imported here. No two of the wheels may install the same file.
    """
    refused = False
    owners: dict[str, str] = {}
    for path in paths:
        imported = 0
        match = xray.name_of(path)
        with xray.unpacked(path) as root:
            infos, violations = _judge(root, match)
            violations += ownership.shared(_names(root), path.name, owners)
            if not violations:
                with tempfile.TemporaryDirectory(prefix="precast-audit-") as work:
                    imported, failed = trial.run(root, list(dict.fromkeys(_guards(root))), Path(work))
                violations += failed
        libraries, images = (sum(len(getattr(info, part)) for info in infos) for part in ("host", "device"))
        held = f"{len(infos)} manifests, {libraries} libraries, {imported} imported here, {images} images"
        print(f"{path.name}: {'refused' if violations else 'passed'}: {held}, {len(violations)} violations")
        for violation in violations:
            print(f"  {violation}")
        for warning in (bad for info in infos for refuses, bad in _known_bad(info) if not refuses):
            print(f"  warning: {warning}")
        refused |= bool(violations)
    return int(refused)


def audit(path: Path) -> tuple[list[Rejection], list[BuildInfo]]:
    """Return the violations and the manifests of a wheel, without running any of its code.

    Raises KernelError if the file is not a wheel.
    """
    match = xray.name_of(path)
    with xray.unpacked(path) as root:
        infos, violations = _judge(root, match)
    return violations, infos


def _judge(root: Path, match: re.Match[str]) -> tuple[list[BuildInfo], list[Rejection]]:
    found: list[Rejection] = []
    infos: list[BuildInfo] = []
    listed: set[str] = set()
    for manifest in _manifests(root):
        info, violations = _manifest(root, manifest)
        found += violations
        infos += [] if info is None else [info]
        folder = manifest.parent.relative_to(root).as_posix()
        listed |= set() if info is None else {finished.at(folder, where) for where in info.files}
    if not infos and not found:
        found.append(Rejection("manifest", f"a {FOLDER}/{verify.MANIFEST} in a package", "none", match[0]))
    found += _tag(match, infos)
    found += _bundled(root, listed)
    found += _stands_alone(root, infos)
    at_top = {where for where in listed if "/" not in where}  # the library of a module of no package
    found += ownership.strangers({*_names(root)} - at_top, match["name"])
    found += _metadata(root, match, infos)
    return infos, found


def _names(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]


def _manifests(root: Path) -> list[Path]:
    return sorted(root.rglob(f"{FOLDER}/{verify.MANIFEST}"))


def _guards(root: Path) -> Iterator[str]:
    """The path of each guard in a wheel whose manifests can be read, as a module's: without a suffix."""
    for manifest in _manifests(root):
        info = prebuilt.load_build_info(manifest.parent)
        for file in () if info is None else info.host:
            guard = _guard(manifest.parent, file)
            if guard is not None:
                where = guard.parent if guard.name == "__init__.py" else guard.with_suffix("")
                yield where.relative_to(root).as_posix()


def _guard(folder: Path, file: HostFile) -> Path | None:
    """The guard of a library: a file of its name in the manifest's folder, beside that, or in the package."""
    name = file.families[0] if file.families else "?"
    beside = [place / f"{name}{suffix}" for place in (folder, folder.parent) for suffix in (".py", ".so")]
    if folder.parent.name == name:
        beside.append(folder.parent / "__init__.py")
    beside += sorted(folder.parent.rglob(f"{name}.so"))  # a library that one of this package links
    return next((path for path in beside if path.is_file() and wheel.is_guard(_text(path))), None)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _manifest(root: Path, path: Path) -> tuple[BuildInfo | None, list[Rejection]]:
    where = path.relative_to(root).as_posix()
    try:
        info = prebuilt.load_build_info(path.parent)
    except KernelError as error:
        return None, [Rejection("manifest", "one that can be read", str(error.found), where)]
    if info is None:
        raise AssertionError(f"{path} was there")
    return info, [*_files(path.parent, where, info), *(bad for refuses, bad in _known_bad(info) if refuses)]


def _known_bad(info: BuildInfo) -> Iterator[tuple[bool, Rejection]]:
    for file in info.host:
        yield from xray_problems.bad_code(file.path, file.compiled, file.families)
    yield from xray_problems.bad_images(info)


def _files(folder: Path, where: str, info: BuildInfo) -> Iterator[Rejection]:
    """Each listed file matches its manifest entry, and there are no unlisted files."""
    every: tuple[HostFile | DeviceFile, ...] = (*info.host, *info.device)
    for file in every:
        try:
            data = prebuilt.verified_bytes(file, folder)
        except verify.Damaged as error:
            yield Rejection("bytes", "the file that was built", str(error), file.name)
            continue
        if isinstance(file, HostFile):
            yield from _library(file, data)
            yield from _links(file, folder, info)
            if file.kind is not HostKind.LINKED and _guard(folder, file) is None:
                name = f"{file.families[0] if file.families else '?'}.py"
                yield Rejection("guard", "the guard of precast.build", f"none next to {where}", name)
    yield from _packed_files(folder, info)
    for part in ("host", "device"):
        for there in sorted((folder / part).glob("*")):
            if f"{part}/{there.name}" not in info.files:
                yield Rejection("strays", f"the files that {where} lists", "one more", f"{part}/{there.name}")


def _links(file: HostFile, folder: Path, info: BuildInfo) -> Iterator[Rejection]:
    """The entry of a library lists the libraries of its folder that it needs, each by its SONAME."""
    sonames = {one.path: _soname(folder / one.path) for one in info.host}
    for soname, path in file.links:
        if sonames[path] != soname:
            yield Rejection("links", f"{path} with the SONAME {soname}", str(sonames[path]), file.path)
    for name in sorted({*file.needed} & {*sonames.values()} - {soname for soname, _ in file.links}):
        yield Rejection("links", f"{name}, which it needs", "a library of that SONAME that it does not list", file.path)


def _soname(path: Path) -> str | None:
    try:
        return elf.read_shared_object(path.read_bytes()).soname
    except (OSError, elf.ElfError):
        return None  # which the audit of the file itself reports


def _packed_files(folder: Path, info: BuildInfo) -> Iterator[Rejection]:
    """Each file of device code unpacks to the images of its entries, and to nothing else."""
    for path, images in by_file(info.device).items():
        why = _why_not_whole(folder / path, images[-1].end)
        if why is not None:
            yield Rejection("images", "the images that the manifest lists", why, path)


def _why_not_whole(path: Path, content_bytes: int) -> str | None:
    try:
        packing.unpack(path.read_bytes(), content_bytes)
    except packing.NotPacked as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _library(file: HostFile, data: bytes) -> Iterator[Rejection]:
    """Compare the claims of a manifest entry with the bytes of the library."""
    try:
        info = elf.read_shared_object(data)
    except elf.ElfError as error:
        yield Rejection("library", "a shared library", str(error), file.path)
        return
    if bindings.brings_runtime(info):
        yield Rejection("C++ runtime", "libstdc++.so.6 from where torch finds it", "one linked into it", file.path)
    bound = bindings.binding(info)
    try:
        inside = xray.inside(data, info)
    except (elf.ElfError, fatbin.FatbinError) as error:
        yield Rejection("code", "device code that can be read", str(error), file.path)
        return
    for what, wanted, found in (
        ("machine", info.machine, file.machine),
        ("needed", info.needed, file.needed),
        ("glibc", (*info.glibc, 0, 0)[:2], (file.glibc.major, file.glibc.minor)),
        ("glibcxx", ".".join(map(str, info.glibcxx or (3, 4))), file.glibcxx),
        ("device code", tuple(map(str, inside["code"])), tuple(map(str, file.code))),
        ("compiler", tuple(map(str, inside["compiled"])), tuple(map(str, file.compiled))),
        ("CPU", inside["cpu"], file.cpu),
        ("CUDA runtime", file.cuda_major if bound.cudart is None else bound.cudart, file.cuda_major),
    ):
        if wanted != found:
            yield Rejection(what, f"{wanted}, as its bytes say", str(found), file.path)
    if bound.torch_cuda and file.cuda_major is None:
        yield Rejection("CUDA runtime", "the CUDA major of torch's own libraries", "none", file.path)
    if bound.classic and file.abi.kind is not AbiKind.EXACT:
        yield Rejection("torch ABI", "one torch, as it names classic C++", f"{file.abi}: {bound.classic[0]}", file.path)
    name = file.families[0] if file.families else ""
    if bindings.needs_python(name, info, bound) != (file.python != "none"):
        named = (*bound.names_of_python, "no name of Python's")[0]
        yield Rejection("Python", f"what its bytes say: {named}", file.python, file.path)


def _tag(name: re.Match[str], infos: Sequence[BuildInfo]) -> Iterator[Rejection]:
    """The Python and ABI tags must match the most restrictive library, and the platform tag its machine."""
    wanted = wheel.tag_of(infos)
    found = name["python"], name["abi"]
    limited = wanted[1] == "abi3" and found[1] == "abi3" and found[0].startswith("cp3")
    if infos and wanted != found and not limited:
        yield Rejection("tag", "-".join(wanted), "-".join(found), name[0])
    for machine in sorted({file.machine for info in infos for file in info.host}):
        if not name["platform"].endswith(f"_{machine}"):
            yield Rejection("tag", f"a platform of {machine}", name["platform"], name[0])


def _stands_alone(root: Path, infos: Sequence[BuildInfo]) -> Iterator[Rejection]:
    """Guards, copies of the core and changed calls must match the manifests, on any machine."""
    names = set(_names(root))
    sources = {where: _source(root / where) for where in names if where.endswith((".py", ".so"))}
    guards = {where for where, content in sources.items() if wheel.is_guard(content.decode("utf-8", "replace"))}
    for where in sorted(guards):
        if sources[where] != alone.text(where, names).encode():
            yield Rejection("guard", "the text of a guard", "another text", where)
    calling = {place.rpartition(":")[0] for info in infos for place, _ in info.changed}
    copies = {alone.home(where, names) for where in guards | calling}
    stated = {info.core for info in infos if info.host}
    for place in sorted(copies):
        folder = root / place / alone.COPY
        found = alone.digest({path.name: path.read_bytes() for path in folder.glob("*") if path.is_file()})
        if stated != {next(iter(stated), None)} or (next(iter(stated)) or ("", ""))[1] != found:
            wanted = ", ".join(sorted(str(one and one[1][:12]) for one in stated))
            yield Rejection("core", f"the copy of which a manifest says {wanted}", found[:12], f"{place}/{alone.COPY}")
    if any(info.patches_loader for info in infos):
        for where in answering.asking(sources):
            why = answering.why_not(sources[where], where)
            if why is not None:
                yield Rejection("answer", f"{answering.LINE.partition('  ')[0]} as its first statement", why, where)
    elif guards:
        yield from _called(sources, guards, {line for info in infos for line in info.changed})


def _called(sources: Mapping[str, bytes], guards: Collection[str], listed: Collection[Any]) -> Iterator[Rejection]:
    """Each call that opens a guard by its path goes through the copy, and the manifests list its line."""
    there = set[tuple[str, str]]()
    try:
        for where, one in calls.of_wheel(alone.without_copies(sources), guards):
            there |= {(f"{where}:{number}", line) for number, line in calls.in_place(one)}
            if calls.through(one, alone.COPY, 1) != sources[where]:
                yield Rejection("calls", "calls that open a library through the core", "one that does not", where)
    except KernelError as error:
        yield Rejection("calls", "a call that a guard can change", str(error.found), error.what)
    for place, line in sorted(there ^ set(listed)):
        yield Rejection("calls", "the lines that the manifests list", line, place)


def _python(root: Path) -> list[str]:
    return [where for where in _names(root) if where.endswith(".py")]


def _source(path: Path) -> bytes:
    """A Python file; of a library so much that a guard differs from it."""
    with path.open("rb") as file:
        return file.read() if path.suffix == ".py" else file.read(_GUARD_BYTES)


def _bundled(root: Path, listed: Collection[str]) -> Iterator[Rejection]:
    """The wheel must not bundle foreign libraries, and what import or torch opens must be behind a guard."""
    for path in sorted({*root.rglob("*.so*"), *root.rglob(f"*{finished.SUFFIX}")}):
        where = path.relative_to(root).as_posix()
        if xray_verdict.is_foreign(path.name) or xray_verdict.is_foreign(path.name.partition(".")[2]):
            yield Rejection("bundled", "torch, CUDA and OpenMP from where torch is installed", "in the wheel", where)
        elif where in listed or (path.parent.name == "host" and path.parent.parent.name == FOLDER):
            continue  # where strays are found
        elif path.suffix == finished.SUFFIX:
            yield Rejection("strays", "the files that the manifests list", "one more", where)
        elif not wheel.is_guard(_text(path)) and _could_be_guarded(where, path.read_bytes()):
            yield Rejection("unguarded", f"libraries in <package>/{FOLDER}/host alone", "in the wheel", where)


def _could_be_guarded(where: str, data: bytes) -> bool:
    try:
        library = xray.library(where, data, None)
    except elf.ElfError:
        return True
    return library.is_module or library.needs_torch or library.python != "none"


def _metadata(root: Path, name: re.Match[str], infos: Sequence[BuildInfo]) -> Iterator[Rejection]:
    """Check version, requirements and RECORD."""
    folder = root / f"{name['name']}-{name['version']}.dist-info"
    metadata = folder / "METADATA"
    if not metadata.is_file():
        yield Rejection("metadata", "a file", "not there", metadata.relative_to(root).as_posix())
        return
    said = wheel_file.headers(metadata.read_bytes())
    requires = said.get_all("Requires-Dist") or []
    why = described.why_precast(infos, alone.importing({where: _source(root / where) for where in _python(root)}))
    if why and not any(REQUIRES.match(text) for text in requires):
        yield Rejection("requirements", f"Requires-Dist: precast, because {why}", str(requires), "METADATA")
    public, _, local = name["version"].partition("+")
    for info in infos:
        if info.version != public:
            yield Rejection("version", info.version, public, name[0])
        if local and info.label.text and info.label.text not in local.split("."):
            yield Rejection("label", f"+{info.label}, as its code is for", f"+{local}", name[0])
    yield from _record(root, folder / "RECORD")


def _record(root: Path, record: Path) -> Iterator[Rejection]:
    rows = list(wheel_file.record_rows(record.read_bytes())) if record.is_file() else []
    for row in (row for row in rows if len(row) != 3):
        yield Rejection("RECORD", "rows of path, hash and size", repr(row)[:200], record.relative_to(root).as_posix())
    listed = {row[0]: row[1] for row in rows if len(row) == 3}
    there = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file() and path != record}
    for where in sorted({*listed, *there} - {record.relative_to(root).as_posix()}):
        found = "nothing of that name"
        if where in there:
            digest = hashlib.sha256(there[where].read_bytes()).digest()
            found = f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        if listed.get(where) != found:
            yield Rejection("RECORD", listed.get(where, "a row"), found, where)
