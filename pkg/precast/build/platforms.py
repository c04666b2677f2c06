"""Finds a wheel's platform tag: the strictest of several, or the manylinux tag that its libraries satisfy (PEP 600)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from precast._builder import xray_verdict
from precast.core.manifest import HostFile
from precast.core.version import dotted
from precast.errors import KernelError

# The glibc of a manylinux policy, and the newest GLIBCXX that it allows (auditwheel's manylinux-policy.json).
_POLICIES = ((17, 19), (24, 22), (27, 24), (31, 28), (34, 29), (35, 30), (39, 33))


def strictest(platforms: Iterable[str]) -> str:
    """The platform that requires most of a machine: a plain Linux tag if there is one, because it states no glibc."""
    return max(platforms, key=_strictness)


def _strictness(platform: str) -> tuple[int, ...]:
    numbers = re.findall(r"manylinux_(\d+)_(\d+)", platform)
    if numbers:
        return min(tuple(map(int, pair)) for pair in numbers)
    return (2, 17) if "manylinux" in platform else (99,)


def manylinux(platform: str, libraries: Iterable[HostFile]) -> str:
    """``manylinux_2_34_x86_64`` instead of a plain Linux tag: the oldest glibc and libstdc++ that have all names.

    KernelError for a library that needs one which neither the system, torch nor CUDA's packages provide.
    """
    if not platform.startswith("linux_"):
        return platform
    least = 17
    for file in libraries:
        own = {soname for soname, _ in file.links}
        foreign = [name for name in file.needed if name not in own and not xray_verdict.PROVIDED.fullmatch(name)]
        if foreign:
            fix = f"link {foreign[0]} statically, or ship it in the wheel"
            raise _refused(file, ", ".join(foreign), "only those of the system, torch and CUDA's packages", fix)
        newest = dotted(file.glibcxx)[2:3] or (0,)
        fitting = [glibc for glibc, allowed in _POLICIES if newest[0] <= allowed]
        if not fitting:
            raise _refused(file, f"GLIBCXX_{file.glibcxx}", f"at most GLIBCXX_3.4.{_POLICIES[-1][1]}")
        least = max(least, file.glibc.minor, min(fitting))
    return f"manylinux_2_{least}_{platform.removeprefix('linux_')}"


def _refused(file: HostFile, found: str, needed: str, fix: str = "build in a manylinux image") -> KernelError:
    return KernelError(f"{file.path} fits no manylinux policy", found=found, needed=needed, fix=fix)
