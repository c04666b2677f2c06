"""The machine that a user asks ``xray`` about, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable

from precast.core.capability import ComputeCapability
from precast.core.reasons import Rejection
from precast.core.value import value
from precast.core.version import CudaVersion, Release, TorchVersion

# The first driver branch with each CUDA version (CUDA Toolkit release notes, table 3).
_BRANCHES = {525: (12, 0), 530: (12, 1), 535: (12, 2), 545: (12, 3), 550: (12, 4), 555: (12, 5), 560: (12, 6)}
_BRANCHES |= {565: (12, 7), 570: (12, 8), 575: (12, 9), 580: (13, 0), 590: (13, 1), 595: (13, 2)}


@value(frozen=True)
class Machine:
    """The machine that a user names; None for a part that must not matter."""

    torch: TorchVersion | None = None
    gpu: ComputeCapability | None = None
    driver: CudaVersion | None = None
    python: Release | None = None
    glibc: Release | None = None


@value(frozen=True)
class Verdict:
    """Whether something works on a machine: ``"yes"``, ``"no"`` or ``"unknown"``, with the reasons against it.

    ``by`` names the libraries that serve, where a wheel has several of which one is enough.
    """

    answer: str
    why: tuple[Rejection, ...] = ()
    by: tuple[str, ...] = ()


def against(answer: str, reason: str, needed: str, found: str) -> Verdict:
    """An answer with the one reason for it."""
    return Verdict(answer, (Rejection(reason, needed, found),))


ORDER = ("no", "unknown", "yes")
YES = Verdict("yes")


def driver_version(text: str) -> CudaVersion:
    """The CUDA version of a driver: of ``"580"``, ``"580.65.06"`` or ``"13.0"``. ValueError for anything else."""
    branch = text.partition(".")[0]
    if len(branch) == 3 and branch.isdecimal():
        known = [cuda for first, cuda in _BRANCHES.items() if int(branch) >= first]
        if known:
            return CudaVersion(*known[-1])
        raise ValueError(f"driver {text} is older than CUDA 12; needed {min(_BRANCHES)} or newer")
    return CudaVersion.parse(text)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """What holds of several things that must all work: the worst answer, with its reasons."""
    found = tuple(verdicts)
    answer = min((one.answer for one in found), key=ORDER.index, default="yes")
    return Verdict(answer, tuple(dict.fromkeys(why for one in found if one.answer == answer for why in one.why)))
