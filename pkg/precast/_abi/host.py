"""The machine at run time, as one value: ``_load.probe`` makes it, and nothing else looks."""

from __future__ import annotations

from precast._abi.capability import ComputeCapability
from precast._abi.value import value
from precast._abi.version import CudaVersion, Release, TorchVersion


@value(frozen=True)
class Gpu:
    """One visible GPU under the index that torch gives it."""

    index: int
    capability: ComputeCapability
    name: str
    uuid: str | None = None


@value(frozen=True)
class TorchInfo:
    """The torch that is installed; ``cuda``, ``hip`` and ``xpu`` are what it was built with."""

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
    """An NVRTC library, the companion that must be loaded before it, and the capabilities it compiles for."""

    path: str
    builtins: str | None
    version: str
    targets: tuple[ComputeCapability, ...]
    found_via: str


@value(frozen=True)
class Builders:
    """What could build a missing piece; ``looked_at`` says where each was sought and what was there.

    ``triton`` is the version of the Triton that is installed, for a family's twin.
    """

    compiler: Compiler | None
    ninja: str | None
    nvrtc: Nvrtc | None
    looked_at: tuple[str, ...] = ()
    triton: str | None = None


@value(frozen=True)
class Installer:
    """The commands that install packages here, and where pip got this copy of precast from.

    ``install`` is ``"pip install"``, or the longer command that reaches the same environment. ``compiler`` installs
    g++ with the system's package manager; empty if no known one is there. ``sources`` is a folder, an archive or a
    repository that pip can build, and ``wheel`` a wheel file, both quoted for the shell; None if unknown.
    ``version`` is the installed version with its label; None without metadata.
    """

    install: str = "pip install"
    compiler: str = ""
    sources: str | None = None
    wheel: str | None = None
    version: str | None = None


@value(frozen=True)
class Stale:
    """Prebuilt files that were not made from the code beside them: what was needed and found, and what helps."""

    wanted: str
    found: str
    remedy: str


@value(frozen=True)
class Host:
    """Everything a decision depends on. None means absent, except ``builders``: None means not looked for yet.

    ``torch_error`` says why ``torch`` is None; ``driver`` is what ``cuDriverGetVersion`` says of the libcuda in use;
    ``lzma_error`` is what ``import lzma`` said when a device file was to be unpacked, and None before or without one.
    ``stale`` is about the prebuilt files of this installation, and None where they are up to date or none are there.
    ``installer`` is looked for only when an error needs a fix; None before.
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
    stale: Stale | None = None
    installer: Installer | None = None
