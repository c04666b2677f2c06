"""Why a file does not serve a need: the need, the reasons, and one rejection for each candidate."""

from __future__ import annotations

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


@value(frozen=True)
class Rejection:
    """One candidate that cannot serve one piece.

    ``piece`` is ``"host"`` for the library, ``"torch"`` for what binds it to torch, ``"cuda:0"``, or ``"cuda"`` for all
    GPUs. ``candidate`` is a file of the manifest, ``"libtorch_cpu.so"``, ``"prebuilt"``, ``"jit"`` or ``"all"``.
    ``wanted`` is the candidate's requirement and ``found`` the actual state. ``remedy.of`` has the command that helps,
    for texts that a person reads.
    """

    piece: str
    candidate: str
    reason: Reason
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.piece}: {self.candidate}: {self.reason.value}: wanted {self.wanted}; found {self.found}"


@value(frozen=True)
class Unopened:
    """Why an intact file cannot be opened on this machine. ``passing``: the reason may be gone a moment later."""

    wanted: str
    found: str
    remedy: str = ""
    passing: bool = False


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
