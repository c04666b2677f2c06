"""The machine at run time as one value. Only ``_load.probe`` makes it."""

from __future__ import annotations

from collections.abc import Sequence

from .capability import MINIMUM_CAPABILITY, ComputeCapability, GpuTarget, TargetKind
from .reasons import Rejection
from .value import value
from .version import CudaVersion, Release, TorchVersion


@value(frozen=True)
class Gpu:
    """One visible GPU, with the index that torch gives it."""

    index: int
    capability: ComputeCapability
    name: str
    uuid: str | None = None


@value(frozen=True)
class TorchInfo:
    """The installed torch; ``cuda``, ``hip`` and ``xpu`` are the versions it was built with."""

    version: TorchVersion
    cxx11: bool
    cuda: CudaVersion | None = None
    hip: str | None = None
    xpu: str | None = None


@value(frozen=True)
class Compiler:
    """A C++ compiler; ``kind`` is ``"g++"`` or ``"clang++"``."""

    path: str
    version: str
    kind: str


@value(frozen=True)
class Nvrtc:
    """An NVRTC library, the companion library to load before it, and the capabilities that it compiles for."""

    path: str
    builtins: str | None
    version: str
    targets: tuple[ComputeCapability, ...]
    found_via: str

    def targets_for(self, gpu: ComputeCapability) -> tuple[GpuTarget, ...]:
        """What this NVRTC can compile for a GPU, best first.

        SASS if NVRTC knows the GPU. Otherwise the newest PTX below it, which the driver compiles for the GPU; and, for
        a driver too old for that PTX, the newest SASS that the GPU runs.
        """
        if gpu in self.targets:
            return (GpuTarget(TargetKind.SASS, gpu),)
        known = sorted((one for one in self.targets if one >= MINIMUM_CAPABILITY), reverse=True)
        best: dict[TargetKind, GpuTarget] = {}
        for target in (GpuTarget(kind, one) for kind in (TargetKind.PTX, TargetKind.SASS) for one in known):
            if target.runs_on(gpu):
                best.setdefault(target.kind, target)
        return tuple(best.values())


@value(frozen=True)
class Builders:
    """The tools that could build a missing piece; ``looked_at`` lists where each was looked for and the result."""

    compiler: Compiler | None
    ninja: str | None
    nvrtc: Nvrtc | None
    looked_at: tuple[str, ...] = ()

    def search(self, what: str) -> str:
        """Where a missing builder was looked for, from the lines of ``looked_at`` that begin with its name."""
        places = [line.removeprefix(f"{what}:").strip() for line in self.looked_at if line.startswith(f"{what}:")]
        return "none that works" + (f" (looked at {'; '.join(places)})" if places else "")


@value(frozen=True)
class Installer:
    """The commands that install packages here, and where pip got this copy of precast from.

    ``install`` is ``"pip install"``, or the longer command that reaches the same environment. ``compiler`` installs
    g++ with the system's package manager; empty without a known one. ``sources`` is a folder, an archive or a
    repository that pip can build, and ``wheel`` a wheel file, both quoted for the shell; None if unknown.
    ``version`` is the installed version with its label; None without metadata.
    """

    install: str = "pip install"
    compiler: str = ""
    sources: str | None = None
    wheel: str | None = None
    version: str | None = None


@value(frozen=True)
class Host:
    """Everything that a decision depends on. None means absent, except for ``builders``: None means not probed yet.

    ``torch_error`` says why ``torch`` is None. ``driver`` is the result of ``cuDriverGetVersion`` of the libcuda in
    use. ``lzma_error`` is the error of ``import lzma`` when a device file had to be unpacked, otherwise None. ``stale``
    describes outdated prebuilt files; None if they are up to date or there are none. ``cpu_levels`` are the instruction
    sets of ours that the processor has, lowest first; None if no setting names one, as then each library chooses for
    itself. ``cpu_features`` are those of /proc/cpuinfo; None unless a library needs some. ``installer`` is no ground of
    a decision: it is probed only when a person needs a fix.
    """

    system: str
    machine: str
    python: Release
    glibc: Release | None
    glibcxx: str | None
    torch: TorchInfo | None
    torch_error: str | None = None
    driver: CudaVersion | None = None
    gpus: tuple[Gpu, ...] = ()
    builders: Builders | None = None
    lzma_error: str | None = None
    stale: Rejection | None = None
    cpu_levels: tuple[str, ...] | None = None
    installer: Installer | None = None
    cpu_features: frozenset[str] | None = None


def named_level(levels: Sequence[str], name: str) -> str:
    """The level that a setting names; "sve" means any SVE level. ValueError if it is none of these."""
    for level in reversed(levels):
        if name == level or (name == "sve" and level.startswith(name)):
            return level
    raise ValueError(f"CPU level {name!r} was asked for; this machine has {', '.join(levels) or 'none'}")
