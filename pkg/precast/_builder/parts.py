"""Parts: files that one job of a release makes and another puts into wheels, each verified by its hash.

A part is a folder, ``device-cu130``, ``host-kernels-x86_64`` or ``adapter-torch-2.4-cxx0-x86_64``, with its files side
by side and a ``parts.json`` in the form of a wheel's manifest. A wheel takes a whole part or refuses it; missing files
are never compiled instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeVar

from precast._abi.settings import Settings
from precast._builder import catalogue, provenance, sources, staging
from precast._builder.binaries import Binary, Made, joined, manifest, selected
from precast._builder.matrix import LabelSpec, Matrix
from precast._builder.packing import NotPacked
from precast._version import __version__
from precast.core.files import digest, read
from precast.core.manifest import (
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    BuildInfo,
    BuildMode,
    DeviceFile,
    HostFile,
    ManifestError,
    host_path,
)
from precast.core.torch_abi import AbiKind, TorchAbi
from precast.core.version import Label, Release
from precast.errors import KernelError

MANIFEST = "parts.json"
B = TypeVar("B", HostFile, DeviceFile)


class PartRefused(KernelError):
    """A part does not fit the wheel; the message names the file."""


def device_name(spec: LabelSpec) -> str:
    """The folder of a label's device code."""
    return f"device-{spec.name}"


def host_name(abi: TorchAbi, machine: str) -> str:
    """The folder of the host library, or of one adapter."""
    return f"host-kernels-{machine}" if abi.kind is AbiKind.TABLE else f"adapter-{abi}-{machine}"


def write(made: Made, label: Label, root: Path, folder: Path) -> bool:
    """Write a part to ``folder``, completely or not at all; False if the same part is already there."""
    info = manifest(made, BuildMode.RELEASE, label, root)
    if _lies_there(folder, info):
        return False
    with staging.staged(folder.parent) as staged:
        part = staged.path(folder.name)
        part.mkdir()
        for path, (_, source) in made.files.items():
            shutil.copyfile(source, part / PurePosixPath(path).name)
        (part / MANIFEST).write_text(info.to_json(), encoding="utf-8")
        staged.place()
    return True


def take(
    folder: Path,
    known: Matrix,
    spec: LabelSpec,
    machine: str,
    root: Path,
    settings: Settings,
    only: Release | None = None,
) -> Made:
    """All parts of one wheel from ``folder``, or PartRefused; compiles nothing. ``only`` selects one minor of torch."""
    abis = known.hosts(machine, only)
    pieces = [_take_host(folder / host_name(abi, machine), abi, machine, root) for abi in abis]
    for source, targets in known.device_sources(spec.label):
        whole = _take_device(folder / device_name(source), source, root)
        try:
            pieces.append(selected(whole, targets, settings))
        except NotPacked as error:
            again = f"python -m tools device --label {source.name} --out {folder}"
            raise _refused(folder / device_name(source), str(error), "the images in parts.json", again) from error
    return joined(pieces)


def _take_device(folder: Path, spec: LabelSpec, root: Path) -> Made:
    again = f"python -m tools device --label {spec.name} --out {folder.parent}"
    info = _read(folder, spec.label, root, again)
    with_code = [family.name for family in catalogue.FAMILIES if family.device is not None]
    wanted = {f"{family} {target}" for family in with_code for target in spec.targets}
    found = {f"{file.family} {file.target}" for file in info.device}
    where = folder / MANIFEST
    if wanted != found or info.host:
        lacks, more = (f"no {one}" for one in sorted(wanted - found)), (f"also {one}" for one in sorted(found - wanted))
        named = ", ".join([*lacks, *more]) or "also a host library"
        raise _refused(where, named, f"the {len(wanted)} images of +{spec.name}", again)
    for file in info.device:
        if file.nvrtc != spec.nvrtc:
            raise _refused(folder / _name(file), f"NVRTC {file.nvrtc}", f"NVRTC {spec.nvrtc}", again)
    return Made(device=tuple(_checked(info.device, folder, again)), compilers=info.compilers)


def _take_host(folder: Path, abi: TorchAbi, machine: str, root: Path) -> Made:
    again = f"python -m tools host --abi {abi} --arch {machine} --out {folder.parent}"
    info = _read(folder, Label(""), root, again)
    families = tuple(family.name for family in catalogue.FAMILIES) if abi.kind is AbiKind.TABLE else ()
    wanted = [(host_path(abi, machine), machine, families, False)]
    found = [(file.path, file.machine, file.families, file.debug) for file in info.host]
    if wanted != found or info.device:
        said = "; ".join(f"{file.path} for {file.machine} with {' '.join(file.families)}" for file in info.host)
        needed = f"{wanted[0][0]} for {machine}{' with all families' if families else ''}"
        raise _refused(folder / MANIFEST, said or "no host library", needed, again)
    return Made(host=tuple(_checked(info.host, folder, again)), compilers=info.compilers)


def _read(folder: Path, label: Label, root: Path, again: str) -> BuildInfo:
    """The manifest of a part that was made from exactly these sources, in a folder without unlisted files."""
    path = folder / MANIFEST
    try:
        info = BuildInfo.from_json(read(path, MAX_MANIFEST_BYTES).decode())
    except (OSError, UnicodeDecodeError, ManifestError) as error:
        raise _refused(path, str(error), "the manifest of a part", again) from error
    digest_here = sources.source_digest(sources.csrc_dir())
    for what, found, wanted in (
        ("version", info.version, __version__),
        ("mode", info.mode.value, BuildMode.RELEASE.value),
        ("label", info.label.text or "none", label.text or "none"),
        ("source digest", info.source_digest, digest_here),
        ("commit", info.commit, provenance.of(root).commit),
    ):
        if found != wanted:
            raise _refused(path, f"{what} {found}", f"{what} {wanted}", again)
    listed = _names(info)
    for stray in sorted(there.name for there in folder.iterdir() if there.name not in listed):
        raise _refused(folder / stray, "a file that parts.json does not list", "the listed files only", again)
    return info


def _checked(files: Iterable[B], folder: Path, again: str) -> Iterator[tuple[B, Path]]:
    for file in files:
        path = folder / _name(file)
        try:
            _, found = digest(path, MAX_FILE_BYTES)
        except OSError as error:
            raise _refused(path, str(error), f"sha256 {file.sha256}", again) from error
        if found != file.sha256:
            raise _refused(path, f"sha256 {found}", f"sha256 {file.sha256}", again)
        yield file, path


def _lies_there(folder: Path, info: BuildInfo) -> bool:
    try:
        if (folder / MANIFEST).read_text(encoding="utf-8") != info.to_json():
            return False
        list(_checked(info.host, folder, ""))
        list(_checked(info.device, folder, ""))
    except (OSError, PartRefused):
        return False
    return {there.name for there in folder.iterdir()} == _names(info)


def _names(info: BuildInfo) -> set[str]:
    return {MANIFEST, *(PurePosixPath(path).name for path in info.files)}


def _name(file: Binary) -> str:
    return PurePosixPath(file.path).name


def _refused(path: Path, found: str, wanted: str, again: str) -> PartRefused:
    return PartRefused(f"{path} cannot be used in this wheel", found=found, needed=wanted, fix=again)
