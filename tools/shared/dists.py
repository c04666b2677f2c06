"""Distributions as an index lists them, read from finished files; files that do not belong there are refused."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from precast._builder import index_pages, wheel_file
from precast._builder.archives import BadArchive, open_tar
from precast.errors import KernelError
from tools.shared import wheelhouse
from tools.shared.platform_tag import PlatformTag
from tools.shared.wheel import NotAWheel, read_wheel

PROJECT = "precast"
_MOST_METADATA = 4 << 20


class IndexRefused(KernelError):
    """An index must not have this content; the message names the file."""


@dataclass(frozen=True, slots=True)
class Dist:
    """One file. ``machines`` is empty for an sdist, which also has no final metadata (PEP 658) before it is built."""

    source: Path
    version: Version
    machines: frozenset[str]
    sha256: str
    size: int
    requires_python: str | None
    core_metadata: bytes | None

    @property
    def filename(self) -> str:
        """The file name, here and on the index."""
        return self.source.name

    @property
    def label(self) -> str:
        """The label as text, which is also the folder on the index; empty if there is none."""
        return self.version.local or ""


def read_dist(path: Path) -> Dist:
    """Read a wheel or an sdist; IndexRefused for any other file, and for one that contradicts its own name."""
    if path.name.endswith(".tar.gz"):
        version, machines, metadata = _read_sdist(path)
    else:
        version, machines, metadata = _read_wheel(path)
    message = wheel_file.headers(metadata)
    said = (index_pages.normal(message.get("Name", "")), message.get("Version", ""))
    if said != (PROJECT, str(version)):
        raise IndexRefused(f"{path}: its metadata says {said[0]} {said[1]}, its name {PROJECT} {version}")
    content = path.read_bytes()
    return Dist(
        source=path,
        version=version,
        machines=machines,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        requires_python=_requires_python(path, message),
        core_metadata=metadata if machines else None,
    )


def _read_wheel(path: Path) -> tuple[Version, frozenset[str], bytes]:
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
        wheel = read_wheel(path)
    except (InvalidWheelFilename, NotAWheel) as error:
        raise IndexRefused(f"{path}: not a wheel: {error}") from error
    _check_name(path, name)
    metadata = wheel.files.get(f"{wheel.dist_info}/METADATA")
    if metadata is None:
        raise IndexRefused(f"{path}: not a wheel: it has no {wheel.dist_info}/METADATA")
    return version, frozenset(_machine(path, tag.platform) for tag in tags), metadata


def _machine(path: Path, platform: str) -> str:
    if platform == "any":
        return platform
    try:
        tag = PlatformTag.parse(platform)
    except ValueError as error:
        raise IndexRefused(f"{path}: {error}") from error
    if tag.policy is None:
        raise IndexRefused(
            f"{path.name} promises nothing to other machines: it is as pip built it",
            found=f"the tag {tag}, in {path}",
            needed="a repaired wheel, with a manylinux tag",
            fix=[
                f"python -m tools repair --out wheelhouse {shlex.quote(str(path))}",
                "python -m tools index wheelhouse --out build/site",
            ],
        )
    return tag.machine


def _read_sdist(path: Path) -> tuple[Version, frozenset[str], bytes]:
    try:
        name, version = parse_sdist_filename(path.name)
        metadata = _pkg_info(path, f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
    except (InvalidSdistFilename, BadArchive) as error:
        raise IndexRefused(f"{path}: not an sdist: {error}") from error
    _check_name(path, name)
    return version, frozenset(), metadata


def _pkg_info(path: Path, name: str) -> bytes:
    """The metadata of an sdist, which must occur once."""
    found: list[bytes] = []
    with open_tar(path) as archive:
        for member in archive:
            if member.name == name and member.size <= _MOST_METADATA:
                found.append(b"".join(archive.pieces(member)))
    if len(found) != 1:
        raise BadArchive(f"it has {len(found)} files {name} of at most {_MOST_METADATA} bytes, not one")
    return found[0]


def _check_name(path: Path, name: str) -> None:
    if name != PROJECT:
        raise IndexRefused(f"{path}: a distribution of {name}; this index serves {PROJECT} alone")


def _requires_python(path: Path, message: Message) -> str | None:
    text: str | None = message.get("Requires-Python")
    try:
        SpecifierSet(text or "")
    except InvalidSpecifier as error:
        raise IndexRefused(f"{path}: Requires-Python: {error}") from error
    return text


def read_wheelhouse(folder: Path, version: Version, labels: Sequence[str]) -> tuple[Dist, ...]:
    """Every wheel and sdist below a folder; all must have one version and known labels, be unique and match records."""
    there = sorted(path for path in folder.rglob("*") if path.is_file())
    records = [path for path in there if path.suffix == ".json"]
    paths = [path for path in there if path not in records]
    if not paths:
        raise IndexRefused(f"{folder}: no wheels here; python -m tools build makes them")
    dists = tuple(map(read_dist, paths))
    if records:
        _hold_against_records(dists, sorted({path.parent for path in records}))
    for dist in dists:
        if dist.version.public != str(version):
            raise IndexRefused(f"{dist.source}: version {dist.version.public}, and this release is {version}")
        if dist.label not in labels:
            known = ", ".join(filter(None, labels))
            raise IndexRefused(f"{dist.source}: matrix.toml has no label {dist.label!r}; it has: {known}")
    refuse_twice(dists)
    return dists


def _hold_against_records(dists: Sequence[Dist], folders: Sequence[Path]) -> None:
    """If `tools build` left records, every file must have a record and match it."""
    recorded = {
        folder / record.file: record.sha256 for folder in folders for record in wheelhouse.read(folder).values()
    }
    for dist in dists:
        wanted = recorded.pop(dist.source, None)
        if wanted != dist.sha256:
            raise IndexRefused(f"{dist.source}: its bytes are {dist.sha256}, its record says {wanted or 'nothing'}")
    for path in recorded:
        raise IndexRefused(f"{path}: not there, though its record is")


def refuse_twice(dists: Sequence[Dist]) -> None:
    """Refuse files that an installer could not choose between: with one name, or for one version and machine."""
    taken: dict[tuple[Version, str], Dist] = {}
    for dist in dists:
        for machine in dist.machines or {"every machine, as sources"}:
            other = taken.setdefault((dist.version, machine), dist)
            if other is not dist:
                raise IndexRefused(f"{dist.source}: {other.source} is {dist.version} for {machine} already")
