"""Merge finished wheels of one version into one, whose manifests have the libraries of all of them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from precast.build import finished, wheel
from precast.build.finished import Finished, Folder
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile, HostKind
from precast.core.opening import FOLDER
from precast.core.torch_abi import AbiKind
from precast.core.version import Label
from precast.errors import KernelError

_MODULE = wheel.MODULE_MARK.encode()


def behind_guards(group: list[Finished], **known: Any) -> tuple[dict[str, bytes], dict[str, BuildInfo]]:
    """The prebuilt files of a wheel, and the manifest of each folder that has some.

    ``known`` has what a manifest can say of a build that was watched, such as ``compilers``.
    """
    files, infos = dict[str, bytes](), dict[str, BuildInfo]()
    for folder in sorted({folder for one in group for folder in one.folders}):
        info, data = _merged(group, folder)
        infos[folder] = replace(info, **known)
        files |= {finished.at(folder, where): content for where, content in data.items()}
    return files, infos


def same_files(group: list[Finished]) -> tuple[dict[str, bytes], frozenset[str]]:
    """The files that are no libraries, and which are executable. KernelError names one that two wheels differ in."""
    version = version_of(group)
    found: dict[str, tuple[tuple[bytes, bool], Path]] = {}
    names = [_renamed(one, version) for one in group]
    for one, files in zip(group, names, strict=True):
        for where, content in files.items():
            other = found.setdefault(where, (content, one.path))
            if other[0] != content and all(data.startswith(_MODULE) for data, _ in (other[0], content)):
                folder = f"{where.rpartition('/')[0]}/{FOLDER}"
                serving, _ = _serving([(each, each.folders[folder]) for each in group if folder in each.folders])
                found[where] = names[group.index(serving)][where], serving.path
            elif other[0] != content:
                needed = "the same bytes in both" if other[0][0] != content[0] else "the same mode in both"
                raise _differ(where, other[1], one.path, needed)
    for one, files in zip(group, names, strict=True):
        lacking = sorted(found.keys() - files.keys())
        if lacking:
            raise _differ(lacking[0], found[lacking[0]][1], one.path, "the file in both, or in neither", lacks=True)
    same = {where: content for where, ((content, _), _) in found.items()}
    return same, frozenset(where for where, ((_, is_program), _) in found.items() if is_program)


def _renamed(one: Finished, version: str) -> dict[str, tuple[bytes, bool]]:
    """The files of a wheel without its metadata, with the folders named after its version renamed."""
    own = {f"{one.dist_info}/{name}" for name in finished.OWN}
    old, new = f"{one.name}-{one.version}.", f"{one.name}-{version}."
    kept = {where: (content, where in one.programs) for where, content in one.rest.items() if where not in own}
    return {new + where[len(old) :] if where.startswith(old) else where: content for where, content in kept.items()}


def _merged(group: list[Finished], folder: str) -> tuple[BuildInfo, dict[str, bytes]]:
    """The manifest of one package over all wheels, and the files that it lists."""
    hosts: dict[str, tuple[HostFile, Path]] = {}
    data: dict[str, bytes] = {}
    parts = [(one, one.folders[folder]) for one in group if folder in one.folders]
    linked = {path for _, part in parts for file in part.hosts for _, path in file.links}
    for one, part in parts:
        for file in part.hosts:
            twin = None if file.path in linked else _twin(file, one.path, hosts)
            if twin is None or file.sha256 < twin.sha256:  # the order of wheels must not decide between twins
                hosts[file.path] = (file, one.path)
                if twin is not None:
                    del hosts[twin.path]
        data |= {where: content for where, content in part.data.items() if not where.startswith("device/")}
    images = _images(parts)
    data |= {image.path: part.data[image.path] for _, part in parts for image in part.device if image in images}
    linked = {path for file, _ in hosts.values() for _, path in file.links}
    hosts = {path: one for path, one in hosts.items() if one[0].kind is not HostKind.LINKED or path in linked}
    labels = {one.label for one in group}
    source = hashlib.sha256("".join(sorted(file.sha256 for file, _ in hosts.values())).encode()).hexdigest()
    info = BuildInfo(
        version=version_of(group).partition("+")[0],
        label=labels.pop() if len(labels) == 1 else Label(""),
        mode=BuildMode.RELEASE,
        commit=None,
        dirty=False,
        source_digest=source,
        host=tuple(file for _, (file, _) in sorted(hosts.items())),
        device=images,
    )
    return info, {where: content for where, content in data.items() if where in info.files}


def _images(parts: list[tuple[Finished, Folder]]) -> tuple[DeviceFile, ...]:
    """The device code of one package; of two NVRTC versions, only the code that more drivers accept."""
    every: dict[str, DeviceFile] = {}
    for _, part in parts:
        if any(every.setdefault(image.name, image) != image for image in part.device):
            break
    else:
        return tuple(every.values())
    serving, best = _serving(parts)
    for one, part in parts:
        lacking = sorted({image.name for image in part.device} - {image.name for image in best.device})
        if lacking:
            needed = f"its GPU targets also in {serving.path.name}, which serves more drivers"
            raise _differ(lacking[0], one.path, serving.path, needed, lacks=True)
    return best.device


def _serving(parts: list[tuple[Finished, Folder]]) -> tuple[Finished, Folder]:
    """The wheel whose device code the oldest driver takes."""

    def drivers(pair: tuple[Finished, Folder]) -> tuple[Any, ...]:
        device = pair[1].device
        return max(image.min_driver for image in device), [image.sha256 for image in device]

    return min((pair for pair in parts if pair[1].device), key=drivers)


def _twin(file: HostFile, path: Path, known: dict[str, tuple[HostFile, Path]]) -> HostFile | None:
    """Another library for the same torch, Python, CUDA and GPUs. On the stable ABI of torch either one serves.

    Two libraries that differ for one torch are refused, because a guard could not choose between them.
    """
    for other, origin in known.values():
        alike = [(one.families, one.abi, one.python, one.cuda_major, one.code, one.cpu) for one in (file, other)]
        if alike[0] == alike[1] and file.sha256 != other.sha256:
            if file.abi.kind is AbiKind.STABLE:
                return other
            needed = "another torch, Python, CUDA or GPU target for each"
            raise _differ(f"{file.families[0]} for {file.abi}, Python {file.python}", origin, path, needed)
    return None


def version_of(group: list[Finished]) -> str:
    """The version that all wheels have, and the torch that all are bound to as its local part."""
    public, locals_ = group[0].version.partition("+")[0], {one.local for one in group}
    return f"{public}+{local}" if len(locals_) == 1 and (local := locals_.pop()) else public


def _differ(what: str, first: Path, second: Path, needed: str, *, lacks: bool = False) -> KernelError:
    return KernelError(
        f"{first.name} and {second.name} cannot be merged",
        found=f"{what} in {first}, and not in {second}" if lacks else f"{what}, not the same in {first} and {second}",
        needed=needed,
        fix="build both wheels from the same sources",
    )
