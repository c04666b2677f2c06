"""``python -m precast.build guard WHEEL... -o DIR``: put libraries of finished wheels behind guards, merge wheels.

Wheels of one version that differ only in torch, C++ ABI, CUDA, Python or GPU targets become one. The same decision that
chooses precast's own libraries chooses among theirs. No source changes, but for one line in each package's
``__init__.py`` of the wheel, so that ``torch.ops.load_library`` opens what is behind a guard. The output is the same
bytes for the same input, and must pass the audit.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precast._abi.build_info import BuildInfo, BuildMode, DeviceFile, HostFile, HostKind
from precast._abi.label import Label
from precast._abi.torch_abi import AbiKind, Exact
from precast._abi.version import TorchVersion
from precast._builder import wheel_file
from precast._load import prebuilt
from precast._version import __version__
from precast.build import audit, finished, platforms, wheel
from precast.build.finished import Finished
from precast.errors import KernelError

# Inserted into the package of a guarded library.
ANSWER = b"__import__('precast.build').build.answer()  # precast.build: torch.ops.load_library opens what fits\n"
_CALL = b"ops.load_library"
_TORCH = re.compile(r"Requires-Dist: torch(?![\w.-])(?P<rest>[^\n]*)\n")


def main(arguments: Sequence[str]) -> int:
    """Guard the wheels; print each output. Exit status 1: the audit refused an output, which is then removed."""
    parser = argparse.ArgumentParser(prog="python -m precast.build guard", description=__doc__)
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL", help="finished wheels, of any build system")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="the folder for guarded wheels")
    parser.add_argument(
        "--torch", type=TorchVersion.parse, metavar="VERSION",
        help="the torch that built wheels which do not say it: 2.13.0 or 2.13.0+cu130",
    )  # fmt: skip
    parser.add_argument(
        "--manylinux", action="store_true", help="the manylinux tag that the libraries keep, for a plain Linux tag"
    )
    options = parser.parse_args(arguments)
    try:
        return int(not audited(options.wheels, options.out, options.torch, manylinux=options.manylinux))
    except KernelError as error:
        print(error, file=sys.stderr)
        return 2


def audited(
    wheels: Iterable[Path], out: Path, torch: TorchVersion | None = None, *, manylinux: bool = False
) -> list[Path]:
    """:func:`guard`, and the audit's report of its output. Empty, and no output is left, if the audit refused one."""
    made = guard(wheels, out, torch, manylinux=manylinux)
    if not audit.report(made):
        return made
    for path in made:
        path.unlink()
    return []


def guard(
    wheels: Iterable[Path], out: Path, torch: TorchVersion | None = None, *, manylinux: bool = False
) -> list[Path]:
    """Write one guarded wheel for each distribution, version and platform. KernelError says which wheels differ.

    ``manylinux`` replaces a plain Linux tag by the manylinux tag that the libraries keep.
    """
    groups: dict[tuple[str, str, str], list[Finished]] = {}
    for one in (finished.read(path, torch) for path in wheels):
        machine = "aarch64" if one.platform.endswith("aarch64") else "x86_64"
        groups.setdefault((one.name, one.version.partition("+")[0], machine), []).append(one)
    out.mkdir(parents=True, exist_ok=True)
    return [_write(group, out, manylinux) for _, group in sorted(groups.items())]


def _write(group: list[Finished], out: Path, manylinux: bool) -> Path:
    first = group[0]
    made, infos = behind_guards(group)
    files = _same_files(group) | made
    files |= {where: answering(files[where]) for where in asking(files)}
    version, tag = _version(group), wheel.tag_of(infos)
    platform = platforms.strictest(one.platform for one in group)
    if manylinux:
        every = (*(file for info in infos for file in info.host), *(file for one in group for file in one.left))
        platform = platforms.manylinux(platform, every)
    dist_info = f"{first.name}-{version}.dist-info"
    said = first.rest[f"{first.dist_info}/METADATA"].decode()
    said = said.replace(f"\nVersion: {first.version}\n", f"\nVersion: {version}\n", 1)
    files[f"{dist_info}/METADATA"] = requiring(said, infos).encode()
    files[f"{dist_info}/WHEEL"] = _wheel(first, tag, platform).encode()
    path = out / f"{first.name}-{version}-{tag[0]}-{tag[1]}-{platform}.whl"
    for file in first.left:
        print(f"{path.name}: left as it is, because only ctypes can open it: {file.path}")
    wheel_file.write_wheel(path, dist_info, files, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    return path


def behind_guards(group: list[Finished], **known: Any) -> tuple[dict[str, bytes], list[BuildInfo]]:
    """The prebuilt files of a wheel, the guards and the manifests; and the manifests as values.

    ``known`` has what a manifest can say of a build that was watched, such as ``compilers``.
    """
    files, infos = dict[str, bytes](), list[BuildInfo]()
    for folder in sorted({folder for one in group for folder in one.folders}):
        info, data = _merged(group, folder)
        infos.append(replace(info, **known))
        files |= {f"{folder}/{where}": content for where, content in data.items()}
        files[f"{folder}/{prebuilt.MANIFEST}"] = infos[-1].to_json().encode()
    guards = frozenset[str]().union(*(one.guards for one in group))
    return files | dict.fromkeys(sorted(guards), wheel.GUARD.encode()), infos


def asking(files: Mapping[str, bytes]) -> list[str]:
    """The ``__init__.py`` of each package in which torch opens a guard, made for that or not."""
    guards = [where for where, text in files.items() if text == wheel.GUARD.encode()]
    asked = {where.partition("/")[0] for where in guards if where.endswith(".so")}
    asked |= {where.partition("/")[0] for where, text in files.items() if where.endswith(".py") and _CALL in text}
    tops = {f"{where.partition('/')[0]}/__init__.py" for where in guards if where.partition("/")[0] in asked}
    return sorted(tops & files.keys() - set(guards))


def _same_files(group: list[Finished]) -> dict[str, bytes]:
    """The files that are no libraries; KernelError names the first that two wheels have in different forms."""
    version = _version(group)
    found: dict[str, tuple[bytes, Path]] = {}
    names = [_renamed(one, version) for one in group]
    for one, files in zip(group, names, strict=True):
        for where, content in files.items():
            other = found.setdefault(where, (content, one.path))
            if other[0] != content:
                raise _differ(where, other[1], one.path, "the same bytes in both")
    for one, files in zip(group, names, strict=True):
        lacking = sorted(found.keys() - files.keys())
        if lacking:
            raise _differ(lacking[0], found[lacking[0]][1], one.path, "it in both, or in neither")
    return {where: content for where, (content, _) in found.items()}


def _renamed(one: Finished, version: str) -> dict[str, bytes]:
    """The files of a wheel but for what it says of itself, with the folders named after its version renamed."""
    own = {f"{one.dist_info}/{name}" for name in finished.OWN}
    old, new = f"{one.name}-{one.version}.", f"{one.name}-{version}."
    kept = {where: content for where, content in one.rest.items() if where not in own}
    return {new + where[len(old) :] if where.startswith(old) else where: content for where, content in kept.items()}


def _merged(group: list[Finished], folder: str) -> tuple[BuildInfo, dict[str, bytes]]:
    """The manifest of one package over all wheels, and the files that it lists."""
    hosts: dict[str, tuple[HostFile, Path]] = {}
    device: dict[str, DeviceFile] = {}
    data: dict[str, bytes] = {}
    parts = [(one, one.folders[folder]) for one in group if folder in one.folders]
    linked = {path for _, part in parts for file in part.hosts for _, path in file.links}
    for one, part in parts:
        for file in part.hosts:
            twin = None if file.path in linked else _twin(file, one.path, hosts)
            if twin is None or file.sha256 < twin.sha256:  # of two stable ones the same in any order
                hosts[file.path] = (file, one.path)
                if twin is not None:
                    del hosts[twin.path]
        for image in part.device:
            other = device.setdefault(image.name, image)
            if other != image:
                raise _differ(image.name, one.path, one.path, "one image for each GPU target")
        data |= part.data
    linked = {path for file, _ in hosts.values() for _, path in file.links}
    hosts = {path: one for path, one in hosts.items() if one[0].kind is not HostKind.LINKED or path in linked}
    labels = {one.label for one in group}
    source = hashlib.sha256("".join(sorted(file.sha256 for file, _ in hosts.values())).encode()).hexdigest()
    info = BuildInfo(
        version=_version(group).partition("+")[0],
        label=labels.pop() if len(labels) == 1 else Label(""),
        mode=BuildMode.RELEASE,
        commit=None,
        dirty=False,
        source_digest=source,
        host=tuple(file for _, (file, _) in sorted(hosts.items())),
        device=tuple(device.values()),
    )
    return info, {where: content for where, content in data.items() if where in info.files}


def _twin(file: HostFile, path: Path, known: dict[str, tuple[HostFile, Path]]) -> HostFile | None:
    """Another library for the same torch, Python, CUDA and GPUs. On the stable ABI of torch either one serves.

    Two that differ for one torch are refused: nothing could choose between them.
    """
    for other, origin in known.values():
        alike = [(one.families, one.abi, one.python, one.cuda_major, one.code, one.cpu) for one in (file, other)]
        if alike[0] == alike[1] and file.sha256 != other.sha256:
            if file.abi.kind is AbiKind.STABLE:
                return other
            needed = "another torch, Python, CUDA or GPU target for each"
            raise _differ(f"{file.families[0]} for {file.abi}, Python {file.python}", origin, path, needed)
    return None


def _version(group: list[Finished]) -> str:
    """The version that all wheels have, and the torch that all are bound to as its local part."""
    public, locals_ = group[0].version.partition("+")[0], {one.local for one in group}
    return f"{public}+{local}" if len(locals_) == 1 and (local := locals_.pop()) else public


def requiring(metadata: str, infos: Iterable[BuildInfo]) -> str:
    """METADATA with precast, and the releases of torch that libraries are for."""
    head, blank, body = metadata.partition("\n\n")
    head = head.rstrip("\n") + "\n"
    exact = [file.abi for info in infos for file in info.host if isinstance(file.abi, Exact)]
    releases = sorted({abi.release for abi in exact})
    if releases and not any(abi.git for abi in exact):  # a requirement of a release excludes its pre-releases
        last = releases[-1]
        between = [f"!={last.major}.{minor}.*" for minor in range(releases[0].minor, last.minor)
                   if last.major == releases[0].major and not any(r.minor == minor for r in releases)]  # fmt: skip
        only = ",".join([f">={releases[0]}", f"<{last.major}.{last.minor + 1}", *between])
        head = _TORCH.sub("", head) + f"Requires-Dist: torch{only}\n"
    if not audit.REQUIRES.search(head):
        head += f"Requires-Dist: precast>={__version__}\n"
    return head + (blank[1:] + body if blank else "")


def _wheel(one: Finished, tag: tuple[str, str], platform: str) -> str:
    """WHEEL with one line for each combination of tags."""
    lines = one.rest[f"{one.dist_info}/WHEEL"].decode("utf-8").splitlines()
    kept = [line for line in lines if line.strip() and not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    tags = [
        f"Tag: {python}-{abi}-{place}"
        for python in tag[0].split(".") for abi in tag[1].split(".") for place in platform.split(".")
    ]  # fmt: skip
    return "\n".join([*kept, "Root-Is-Purelib: false", *tags, ""])


def answering(source: bytes) -> bytes:
    """The source of a package with the line that lets torch open its guards, after docstring and future imports."""
    if ANSWER in source:
        return source
    last = 0
    for node in ast.parse(source).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        last = node.end_lineno or last
    lines = source.splitlines(keepends=True)
    if last and not lines[last - 1].endswith(b"\n"):
        lines[last - 1] += b"\n"
    return b"".join([*lines[:last], ANSWER, *lines[last:]])


def _differ(what: str, first: Path, second: Path, needed: str) -> KernelError:
    return KernelError("two wheels cannot be merged", found=f"{what}, in {first} and {second}", needed=needed)
