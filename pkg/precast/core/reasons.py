"""Why a file does not serve a need: the need, the reasons, and one rejection for each candidate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Literal, TypeVar

from .value import Words, value

# The candidate of a rejection that is not about a single file.
EVERYTHING = "all"
PREBUILT_CANDIDATE = "prebuilt"
JIT_CANDIDATE = "jit"
NO_TORCH = "no torch"

T_co = TypeVar("T_co", covariant=True)


class Reason(Words):
    """Why a candidate was rejected; people and JSON readers see the value."""

    SYSTEM = "system"
    TORCH_MISSING = "torch-missing"
    TORCH_CPU = "torch-cpu"
    HIP = "hip"
    XPU = "xpu"
    NO_GPU = "no-gpu"
    JIT_OFF = "jit-off"
    CPU_LEVEL = "cpu-level"
    NO_PREBUILT = "no-prebuilt"
    SKIPPED = "skipped"
    STALE = "stale"
    DAMAGED = "damaged"
    UNOPENED = "unopened"
    FAMILY = "family"
    MACHINE = "machine"
    PYTHON = "python"
    TORCH_ABI = "torch-abi"
    CUDA_RUNTIME = "cuda-runtime"
    GLIBC = "glibc"
    GLIBCXX = "glibcxx"
    ARCH = "arch"
    KNOWN_BAD = "known-bad"
    DRIVER = "driver"
    NO_LZMA = "no-lzma"
    AOT_ONLY = "aot-only"
    BUILDERS_UNKNOWN = "builders-unknown"
    CLASSIC_JIT = "classic-jit"
    NO_COMPILER = "no-compiler"
    NO_NINJA = "no-ninja"
    NO_NVRTC = "no-nvrtc"
    NVRTC_ARCH = "nvrtc-arch"


# Each reason in a few words; empty where what was found says it better.
BRIEF: Mapping[Reason, str] = {
    Reason.SYSTEM: "not Linux",
    Reason.TORCH_MISSING: "torch cannot be imported",
    Reason.TORCH_CPU: "torch is a CPU build",
    Reason.HIP: "torch is a ROCm build",
    Reason.NO_GPU: "no visible GPU",
    Reason.DRIVER: "NVIDIA driver too old",
    Reason.JIT_OFF: "PRECAST_JIT=none",
    Reason.CPU_LEVEL: "no such CPU level",
    Reason.NO_PREBUILT: "installed from source",
    Reason.STALE: "prebuilt files out of date",
    Reason.DAMAGED: "prebuilt file corrupted",
    Reason.UNOPENED: "prebuilt file not opened",
    Reason.MACHINE: "wheel for another CPU",
    Reason.TORCH_ABI: "no file for this torch",
    Reason.ARCH: "no code for this GPU",
    Reason.KNOWN_BAD: "code known as wrong",
    Reason.AOT_ONLY: "PRECAST_JIT=aot",
    Reason.CLASSIC_JIT: "torch too old",
    Reason.NO_COMPILER: "no C++ compiler",
    Reason.NO_NINJA: "no ninja",
    Reason.NO_NVRTC: "no NVRTC",
    Reason.XPU: "torch is an XPU build",
    Reason.SKIPPED: "",
    Reason.FAMILY: "",
    Reason.PYTHON: "wheel for another Python",
    Reason.CUDA_RUNTIME: "torch has another CUDA",
    Reason.GLIBC: "glibc too old",
    Reason.GLIBCXX: "libstdc++ too old",
    Reason.NO_LZMA: "Python without lzma",
    Reason.BUILDERS_UNKNOWN: "",
    Reason.NVRTC_ARCH: "NVRTC too old",
}


@value(frozen=True)
class Rejection:
    """Why something does not serve: the one value of every no, of the loader, the audits and ``xray``.

    ``reason`` is a :class:`Reason`, or the check of an audit. ``needed`` is what it requires, ``found`` the actual
    state. ``candidate`` is what is refused: a file of the manifest or of a wheel, ``"libtorch_cpu.so"``,
    ``"prebuilt"``, ``"jit"`` or ``"all"``. ``piece`` is what a call needs: ``"host"``, the library; ``"torch"``, what
    binds it to torch; ``"cuda:0"``; or ``"cuda"``, all GPUs. ``fix`` is the command that helps, if whoever says no
    knows it; else ``fixes.of`` does. ``passing``: the reason may be gone a moment later.
    """

    reason: str
    needed: str
    found: str
    candidate: str = ""
    piece: str = ""
    fix: str = ""
    passing: bool = False

    def at(self, piece: str, candidate: str) -> Rejection:
        """The same reason against a candidate for a piece."""
        return Rejection(self.reason, self.needed, self.found, candidate, piece, self.fix, self.passing)

    @property
    def why(self) -> str:
        """The reason and the facts in one clause, without what is refused."""
        return f"{self.reason}: needs {self.needed}; found {self.found}"

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.piece, self.candidate, self.why)))


def damaged(found: str) -> Rejection:
    """The reason against a file whose bytes are not those that were built."""
    return Rejection(Reason.DAMAGED, "the file that was built", found)


@value(frozen=True)
class Need:
    """One kernel family on one kind of device. A family on ``"cpu"`` needs only the host library.

    ROCm builds of torch call their GPUs ``"cuda"`` too. ``"xpu"`` is Intel's which only plain torch can serve.
    """

    family: str
    device: Literal["cpu", "cuda", "xpu"]


@value(frozen=True)
class Pick(Generic[T_co]):
    """The outcome for one piece: the chosen candidate or None, and the rejected candidates."""

    chosen: T_co | None
    rejections: tuple[Rejection, ...]
    notes: tuple[str, ...] = ()
