"""Find a C++ compiler and ninja. Looks at files and asks for versions and targets; compiles nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from precast._abi.settings import Settings
from precast.core.host import Compiler

_COMPILERS = ("g++", "c++", "clang++")
_USABLE = 0.85  # share of the free memory; the rest is for other processes
COMPILE_BYTES = 400_000_000  # our largest compile took 243 MB (g++ 12.2, the adapter to torch)
_WRAPPERS = ("ccache", "sccache", "distcc")  # may precede the compiler in CXX; our own cache makes them unnecessary


def target_machine(settings: Settings) -> str:
    """The architecture to build for: PRECAST_ARCH, otherwise that of this machine."""
    return settings.arch or platform.machine()


def find_compiler(settings: Settings, machine: str | None = None) -> tuple[Compiler | None, tuple[str, ...]]:
    """CXX if it is set (a setting is verified, never replaced), otherwise the first working compiler on PATH.

    For another ``machine`` it is the cross compiler with the Debian name, and it must report that machine as its
    target. Also returns one line for every place that was searched.
    """
    looked_at: list[str] = []
    cxx = settings.cxx
    cross = None if machine in (None, platform.machine()) else machine
    names: tuple[str, ...] = _COMPILERS if cross is None else (f"{cross}-linux-gnu-g++",)
    if cxx:
        try:
            words = shlex.split(cxx)
        except ValueError as error:  # a quotation mark without its partner
            return None, (f"compiler: CXX={cxx!r} cannot be read: {error}",)
        if len(words) > 1 and Path(words[0]).name in _WRAPPERS:
            words = words[1:]
        if len(words) != 1:
            return None, (f"compiler: CXX={cxx!r} must be one compiler, without options",)
        names = (words[0],)
    for name in names:
        shown = f"CXX={cxx!r}" if cxx else f"{name} on PATH"
        path = shutil.which(name)
        found = ask_compiler(path) if path else None
        target = _said(path, "-dumpmachine").partition("-")[0] if path and found and cross else None
        if found is None:
            looked_at.append(f"compiler: {shown}: {'does not say its version' if path else 'not there'}")
        elif target != cross:
            looked_at.append(f"compiler: {shown}: {path} compiles for {target}, not for {cross}")
        else:
            looked_at.append(f"compiler: {shown}: {path} {found.version}")
            return found, tuple(looked_at)
    return None, tuple(looked_at)


def launcher() -> tuple[str, ...]:
    """A prefix for compiles of user sources: ccache or sccache if installed.

    Our own sources need none: each of their objects is an entry of our cache.
    """
    found = (shutil.which(name) for name in ("ccache", "sccache"))
    return next(((path,) for path in found if path), ())


def package_for(machine: str) -> str:
    """The Debian package of the compiler for ``machine``."""
    if machine == platform.machine():
        return "g++"
    return f"g++-{machine.replace('_', '-')}-linux-gnu"


def libc_version(compiler: Compiler, machine: str) -> str:
    """The C library that a compiler links with, such as "glibc 2.36". A cross compiler brings its own."""
    if machine == platform.machine():
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown libc"
    library = Path(_said(compiler.path, "-print-file-name=libc.so.6"))
    content = library.read_bytes() if library.is_file() else b""
    banner = re.search(rb"GNU C Library .*release version (\d+\.\d+)", content)
    return "unknown libc" if banner is None else f"glibc {banner[1].decode()}"


def _said(path: str, option: str) -> str:
    return subprocess.run([path, option], capture_output=True, text=True, timeout=30, check=False).stdout.strip()


def ask_compiler(path: str) -> Compiler | None:
    """Kind and version that a compiler reports; None if the program does not answer like a compiler."""
    try:
        answers = [
            subprocess.run([path, *option], capture_output=True, text=True, timeout=30, check=False).stdout
            for option in (["--version"], ["-dumpfullversion", "-dumpversion"])
        ]
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.match(r"\d+(\.\d+)*", answers[1].strip())
    if version is None:
        return None
    return Compiler(path=path, version=version[0], kind="clang++" if "clang" in answers[0] else "g++")


def find_ninja() -> tuple[str | None, tuple[str, ...]]:
    """The ninja of the ``ninja`` package, otherwise the one on PATH; with one line for every place searched."""
    looked_at: list[str] = []
    spec = importlib.util.find_spec("ninja")
    for folder in () if spec is None else (spec.submodule_search_locations or ()):
        # The package keeps it in data/bin up to 1.11, and in the environment's bin folder after that.
        for candidate in (Path(folder) / "data" / "bin" / "ninja", *_scripts_beside(Path(folder))):
            if os.access(candidate, os.X_OK):
                return str(candidate), (f"ninja: {candidate}",)
        looked_at.append(f"ninja: the ninja package in {folder} brings no program")
    if spec is None:
        looked_at.append("ninja: the ninja package is not installed")
    found = shutil.which("ninja")
    looked_at.append(f"ninja: {found}" if found else "ninja: not on PATH")
    return found, tuple(looked_at)


def _scripts_beside(package: Path) -> tuple[Path, ...]:
    """Where pip puts the programs of a package in this site-packages: in a prefix or in a --target folder."""
    site = package.parent
    return (site / "bin" / "ninja", *(parent / "bin" / "ninja" for parent in site.parents[1:3]))


def default_jobs(settings: Settings) -> int:
    """MAX_JOBS, otherwise as many jobs as CPUs and memory allow, by affinity and by the limits of the cgroup."""
    if settings.max_jobs:
        return settings.max_jobs
    groups = cgroups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    limits = [_cgroup_cpus(group / "cpu.max") for group in groups]
    limits.append(_jobs_in_memory(free_memory(Path("/proc/meminfo"), groups)))
    return max(1, min([len(os.sched_getaffinity(0)), *(limit for limit in limits if limit is not None)]))


def cgroups(membership: Path, root: Path) -> tuple[Path, ...]:
    """The folders of this process's cgroup (v2) and its parents; a batch job may have its limit in any of them."""
    try:
        match = re.search(r"^0::/(.*)$", membership.read_text(), re.MULTILINE)
    except OSError:  # no cgroups
        return ()
    own = root / (match[1] if match else "")
    return tuple(folder for folder in (own, *own.parents) if folder == root or root in folder.parents)


def free_memory(meminfo: Path, groups: Sequence[Path]) -> int | None:
    """The bytes that the machine and its cgroups leave free; None if neither is known."""
    found = [_cgroup_memory(group) for group in groups]
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
        found.append(int(match[1]) * 1024 if match else None)
    except OSError:  # no /proc, so only the cgroups count
        pass
    return min((max(0, free) for free in found if free is not None), default=None)


def _cgroup_memory(group: Path) -> int | None:
    """The free memory under the limit of one cgroup (v2); None without a limit."""
    try:
        most = int((group / "memory.max").read_text())  # "max" if there is no limit
        used = int((group / "memory.current").read_text())
        cache = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return most - used + (int(cache[1]) if cache else 0)  # cached files are dropped under memory pressure


def _jobs_in_memory(free_bytes: int | None) -> int | None:
    return None if free_bytes is None else int(free_bytes * _USABLE) // COMPILE_BYTES


def _cgroup_cpus(path: Path) -> int | None:
    """The CPU quota of a cgroup (v2), rounded up to whole CPUs; None without a quota."""
    try:
        quota, _, period = path.read_text().strip().partition(" ")
        return None if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):  # no cgroup v2, or another format; only the affinity counts
        return None
