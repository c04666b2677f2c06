"""``python -m precast.build guard WHEEL... -o DIR``: put libraries of finished wheels behind guards, merge wheels.

Wheels of one version that differ only in torch, C++ ABI, CUDA, Python or GPU targets become one. The wheel gets a copy
of the checks that precast makes of its own libraries, so it needs no precast. Each library stays in its folder.
A call in the wheel's Python that opens a library by its path goes through the copy; each changed line is printed.
The same input gives the same bytes. A wheel must pass the audit before it is moved to its place.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast._builder import staging, wheel_file
from precast._builder.staging import Staged
from precast.build import alone, audit, described, finished, merging, platforms, wheel
from precast.build.finished import Finished
from precast.build.stated import NOTHING, Stated
from precast.core.torch_abi import CLASSIC_FLOOR
from precast.errors import KernelError


def main(arguments: Sequence[str]) -> int:
    """Guard the wheels and print each output. Exit status 1: the audit refused an output, so nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m precast.build guard", description=__doc__)
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL", help="finished wheels, of any build system")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="the folder for guarded wheels")
    parser.add_argument(
        "--torch", action="append", default=[], metavar="[GLOB=]VERSION",
        help="the torch that built the libraries: 2.13.0+cu130; for one path: '*/new/*=2.13'",
    )  # fmt: skip
    parser.add_argument(
        "--manylinux",
        action="store_true",
        help="replace a plain Linux tag by the manylinux tag that the libraries satisfy",
    )
    parser.add_argument(
        "--patch-loader", action="store_true",
        help="wrap torch.ops.load_library for the whole process, if another package opens the libraries by path",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        stated = Stated.parse(options.torch)
    except ValueError as error:
        parser.error(str(error))
    how = How(options.manylinux, options.patch_loader)
    try:
        return int(not audited(options.wheels, options.out, stated, how))
    except KernelError as error:
        print(error, file=sys.stderr)
        return 2


@dataclass(frozen=True)
class How:
    """``manylinux``: a plain Linux tag becomes the manylinux tag that the libraries keep."""

    manylinux: bool = False
    patch_loader: bool = False


_USUAL = How()


def audited(wheels: Sequence[Path], out: Path, stated: Stated = NOTHING, how: How = _USUAL) -> list[Path]:
    """:func:`guard`, and the audit's report of its output. Empty, and nothing is written, if the audit refused one."""
    with staging.staged(out, wheels) as staged:
        made = _guarded(wheels, staged, stated, how)
        return [] if audit.report(made) else staged.place()


def guard(wheels: Sequence[Path], out: Path, stated: Stated = NOTHING, how: How = _USUAL) -> list[Path]:
    """Write one guarded wheel for each distribution, version and platform. KernelError says which wheels differ."""
    with staging.staged(out, wheels) as staged:
        _guarded(wheels, staged, stated, how)
        return staged.place()


def _guarded(wheels: Iterable[Path], staged: Staged, stated: Stated, how: How) -> list[Path]:
    groups: dict[tuple[str, ...], list[Finished]] = {}
    for one in (finished.read(path, stated) for path in wheels):
        machine = "aarch64" if one.platform.endswith("aarch64") else "x86_64"
        groups.setdefault((one.name, one.version.partition("+")[0], one.build, machine), []).append(one)
    return [_write(group, staged, how) for _, group in sorted(groups.items())]


def _write(group: list[Finished], staged: Staged, how: How) -> Path:
    first = group[0]
    data, infos = merging.behind_guards(group)
    same, programs = merging.same_files(group)
    guards = frozenset[str]().union(*(one.guards for one in group))
    made = alone.standing(same | data, infos, guards, patch_loader=how.patch_loader)
    version, given = merging.version_of(group), [one.python for one in group]
    tag = wheel.tag_within(made.infos, given)
    platform = platforms.strictest(one.platform for one in group)
    if how.manylinux:
        every = (*(file for info in made.infos for file in info.host), *(file for one in group for file in one.left))
        platform = platforms.manylinux(platform, every)
    dist_info = f"{first.name}-{version}.dist-info"
    said = described.of_python(_said(group, "METADATA").replaced("Version", version), given, tag)
    tags = [f"{python}-{abi}-{place}" for python in tag[0].split(".") for abi in tag[1].split(".")
            for place in platform.split(".")]  # fmt: skip
    why = described.why_precast(made.infos, alone.importing(made.files))
    files = dict(made.files)
    files[f"{dist_info}/METADATA"] = described.requiring(str(said), made.infos, why).encode("utf-8")
    files[f"{dist_info}/WHEEL"] = described.wheel_file(_said(group, "WHEEL"), tags).encode("utf-8")
    path = staged.path(f"{first.name}-{version}{first.build}-{tag[0]}-{tag[1]}-{platform}.whl")
    for place, line in made.changed:
        print(f"{path.name}: changed {place}: {line}")
    for place in sorted({file.path for one in group for file in one.left}):
        print(f"{path.name}: left as it is, because neither import nor torch opens it: {place}")
    if why:
        print(f"{path.name}: requires precast, because {why}")
    for place, release in sorted({(old.path, old.stated) for one in group for old in one.old}):
        print(f"{path.name}: left out, because precast is for torch {CLASSIC_FLOOR} and newer: {place}, for {release}")
    wheel_file.write_wheel(path, dist_info, files, wheel_file.stated_epoch() or 0, programs)
    return path


def _said(group: Iterable[Finished], name: str) -> described.Headers:
    """The metadata of all wheels."""
    found = {one.path: described.parse(one.rest[where], f"{one.path}: {name}")
             for one in group for where in [f"{one.dist_info}/{name}"]}  # fmt: skip
    return described.merged(found, name)
