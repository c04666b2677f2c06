"""What a decision is made of: the need, the three outcomes, and the reasons against each candidate."""

from __future__ import annotations

from enum import Enum
from typing import Generic, Literal, TypeVar

from precast._abi.build_info import DeviceFile, HostFile
from precast._abi.capability import GpuTarget
from precast._abi.torch_abi import TorchAbi
from precast._abi.value import value

# What a rejection is about when it is not about one file.
EVERYTHING = "all"
PREBUILT_CANDIDATE = "prebuilt"
JIT_CANDIDATE = "jit"
TRITON_CANDIDATE = "triton"
NO_TORCH = "no torch"

T = TypeVar("T")


class Reason(str, Enum):
    """Why a candidate was passed over; the value is what people and JSON read."""

    SYSTEM = "system"
    TORCH_MISSING = "torch-missing"
    TORCH_CPU = "torch-cpu"
    HIP = "hip"
    XPU = "xpu"
    NO_GPU = "no-gpu"
    JIT_OFF = "jit-off"
    NO_PREBUILT = "no-prebuilt"
    SKIPPED = "skipped"
    STALE = "stale"
    DAMAGED = "damaged"
    FAMILY = "family"
    MACHINE = "machine"
    PYTHON = "python"
    TORCH_ABI = "torch-abi"
    CUDA_RUNTIME = "cuda-runtime"
    GLIBC = "glibc"
    GLIBCXX = "glibcxx"
    ARCH = "arch"
    DRIVER = "driver"
    NO_LZMA = "no-lzma"
    AOT_ONLY = "aot-only"
    BUILDERS_UNKNOWN = "builders-unknown"
    CLASSIC_JIT = "classic-jit"
    NO_COMPILER = "no-compiler"
    NO_NINJA = "no-ninja"
    NO_NVRTC = "no-nvrtc"
    NVRTC_ARCH = "nvrtc-arch"
    NO_TRITON = "no-triton"


@value(frozen=True)
class Rejection:
    """One candidate that cannot serve one piece.

    ``piece`` is ``"host"``, ``"cuda:0"``, or ``"cuda"`` for all GPUs; ``candidate`` is a file of the manifest, or
    ``"prebuilt"``, ``"jit"``, ``"triton"`` or ``"all"``; ``wanted`` is what the candidate needs, ``found`` what there
    was; ``remedy`` is a command, or empty if there is none.
    """

    piece: str
    candidate: str
    reason: Reason
    wanted: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.piece}: {self.candidate}: {self.reason.value}: wanted {self.wanted}; found {self.found}"


@value(frozen=True)
class Need:
    """One kernel family on one kind of device. A family on ``"cpu"`` needs the host library alone.

    ``"cuda"`` is also what a ROCm build of torch calls its GPUs; for ``"xpu"``, Intel's, there is nothing but a twin.
    """

    family: str
    device: Literal["cpu", "cuda", "xpu"]


@value(frozen=True)
class BuildHost:
    """A host library to be built."""

    abi: TorchAbi


@value(frozen=True)
class BuildImage:
    """Device code to be built."""

    target: GpuTarget


@value(frozen=True)
class Choice(Generic[T]):
    """The outcome for one piece: what serves it, or None; and the candidates passed over."""

    chosen: T | None
    rejections: tuple[Rejection, ...]
    notes: tuple[str, ...] = ()


Refused = tuple[tuple[int, tuple[Rejection, ...]], ...]


@value(frozen=True)
class UsePrebuilt:
    """Every piece that can be served is there already. ``refused``: the GPUs that nothing serves, each with why.

    ``images`` pairs the index of each served GPU with its file; ``rejections`` are the candidates passed over for the
    chosen ones; ``notes`` are sentences a user may want to read once.
    """

    host: HostFile
    images: tuple[tuple[int, DeviceFile], ...]
    refused: Refused = ()
    rejections: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()


@value(frozen=True)
class BuildJit:
    """At least one piece is to be built; the others are files. The fields are those of :class:`UsePrebuilt`."""

    host: HostFile | BuildHost
    images: tuple[tuple[int, DeviceFile | BuildImage], ...]
    refused: Refused = ()
    rejections: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()


@value(frozen=True)
class Refuse:
    """Nothing can be served; there is at least one rejection."""

    rejections: tuple[Rejection, ...]


Decision = UsePrebuilt | BuildJit | Refuse


def all_rejections(decision: Decision) -> tuple[Rejection, ...]:
    """The rejections of the served pieces and of the refused GPUs together."""
    if isinstance(decision, Refuse):
        return decision.rejections
    return decision.rejections + tuple(rejection for _, why in decision.refused for rejection in why)


def needs_builders(decision: Decision) -> bool:
    """True when a piece was refused only because nobody has looked for builders yet: look, then decide again."""
    return any(rejection.reason is Reason.BUILDERS_UNKNOWN for rejection in all_rejections(decision))
