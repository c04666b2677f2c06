"""The parts of a decision: the need, the three outcomes, and the reasons against each candidate."""

from __future__ import annotations

from enum import Enum
from typing import Generic, Literal, TypeVar

from precast._abi.build_info import DeviceFile, HostFile
from precast._abi.capability import GpuTarget
from precast._abi.torch_abi import Exact
from precast._abi.value import value

# The candidate of a rejection that is not about a single file.
EVERYTHING = "all"
PREBUILT_CANDIDATE = "prebuilt"
JIT_CANDIDATE = "jit"
TRITON_CANDIDATE = "triton"
NO_TORCH = "no torch"
FROM_SOURCE = "precast was installed from source, without prebuilt kernels"
# The candidate that is torch itself: its own library has every function of the table.
OWN_FUNCTIONS = "libtorch_cpu.so"

T_co = TypeVar("T_co", covariant=True)


class Reason(str, Enum):
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

    ``piece`` is ``"host"`` for the library, ``"torch"`` for what binds it to torch, ``"cuda:0"``, or ``"cuda"`` for all
    GPUs. ``candidate`` is a file of the manifest, ``"libtorch_cpu.so"``, ``"prebuilt"``, ``"jit"``, ``"triton"`` or
    ``"all"``. ``wanted`` is the candidate's requirement and ``found`` the actual state. ``remedy.of`` has the command
    that helps, for texts that a person reads.
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

    ROCm builds of torch call their GPUs ``"cuda"`` too. ``"xpu"`` is Intel's and can only be served by a twin.
    """

    family: str
    device: Literal["cpu", "cuda", "xpu"]


@value(frozen=True)
class BuildHost:
    """A host library that must be built; it is for any torch."""


@value(frozen=True)
class BuildAdapter:
    """An adapter that must be built, for exactly this torch."""

    abi: Exact


@value(frozen=True)
class OwnFunctions:
    """This torch has every function of the table. With ``prove`` it must be shown that they do what they should."""

    prove: bool = False


# What binds a library to torch. None for a library that is linked against torch.
Binding = OwnFunctions | HostFile | BuildAdapter | None


@value(frozen=True)
class BuildImage:
    """Device code that must be built."""

    target: GpuTarget


@value(frozen=True)
class Pick(Generic[T_co]):
    """The outcome for one piece: the chosen candidate or None, and the rejected candidates."""

    chosen: T_co | None
    rejections: tuple[Rejection, ...]
    notes: tuple[str, ...] = ()


Refused = tuple[tuple[int, tuple[Rejection, ...]], ...]


@value(frozen=True)
class UsePrebuilt:
    """Every piece that can be served is prebuilt. ``refused`` lists the GPUs without device code, with the reasons.

    ``binding`` is what gives ``host`` the functions of torch. ``images`` pairs the index of each served GPU with its
    file. ``rejections`` are the candidates that were rejected before the chosen ones. ``notes`` are sentences that a
    user may want to read once.
    """

    host: HostFile
    images: tuple[tuple[int, DeviceFile], ...]
    refused: Refused = ()
    rejections: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()
    binding: OwnFunctions | HostFile | None = None


@value(frozen=True)
class BuildJit:
    """At least one piece must be built; the others are files. The fields are those of :class:`UsePrebuilt`."""

    host: HostFile | BuildHost
    images: tuple[tuple[int, DeviceFile | BuildImage], ...]
    refused: Refused = ()
    rejections: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()
    binding: Binding = None


@value(frozen=True)
class Refuse:
    """Nothing can be served. There is at least one rejection."""

    rejections: tuple[Rejection, ...]


Decision = UsePrebuilt | BuildJit | Refuse


def all_rejections(decision: Decision) -> tuple[Rejection, ...]:
    """The rejections of the served pieces and of the refused GPUs."""
    if isinstance(decision, Refuse):
        return decision.rejections
    return decision.rejections + tuple(rejection for _, why in decision.refused for rejection in why)


def asks_for_builders(why: Rejection) -> bool:
    """True if a piece was refused only because the builders have not been probed."""
    return why.reason is Reason.BUILDERS_UNKNOWN


def needs_builders(decision: Decision) -> bool:
    """True if probing the builders could change the decision: probe them and decide again."""
    return any(map(asks_for_builders, all_rejections(decision)))
