"""The outcomes of a decision: use prebuilt files, build what is missing, or refuse."""

from __future__ import annotations

from precast.core.capability import GpuTarget
from precast.core.manifest import DeviceFile, HostFile
from precast.core.reasons import Reason, Rejection
from precast.core.torch_abi import Exact
from precast.core.value import value

FROM_SOURCE = "precast was installed from source, without prebuilt kernels"
# The candidate that is torch itself: its own library has every function of the table.
OWN_FUNCTIONS = "libtorch_cpu.so"


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
