"""What a guard is, what it looks at, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from precast._abi.build_info import BuildInfo, BuildMode, DeviceFile
from precast._abi.violation import Violation
from precast._builder import packing
from precast._builder.matrix import Matrix
from tools.shared import binaries
from tools.shared.wheel import Wheel

TORCH_LISTS = Path(__file__).resolve().parents[1] / "torch_symbols"


class NoManifest(ValueError):
    """A guard asked for the manifest of a wheel that has none; the guard of the manifest has said so."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a wheel is held against besides the matrix.

    ``repaired`` asks for the policy's platform tag and for what ``repair`` adds. ``twin`` is a second build of it,
    ``torch_lists`` the folder with the symbols of each torch that has a classic library, ``only_torch`` the minor that
    a slim wheel serves. ``publishing`` asks for what only matters once others get it: where it comes from.
    """

    repaired: bool = True
    twin: Path | None = None
    torch_lists: Path = TORCH_LISTS
    only_torch: str | None = None
    publishing: bool = False


@dataclass(frozen=True, slots=True)
class Audited:
    """One wheel and what it is held against. ``libraries`` are its host libraries that could be read, by path."""

    wheel: Wheel
    manifest: BuildInfo | None
    matrix: Matrix
    libraries: Mapping[str, binaries.LibraryFacts]
    asked: Asked

    @property
    def info(self) -> BuildInfo:
        """The manifest, or NoManifest."""
        if self.manifest is None:
            raise NoManifest
        return self.manifest

    def image(self, file: DeviceFile) -> bytes:
        """The device code in one file of the manifest; NotPacked when it is none of the size that it should have."""
        return packing.unpack(self.wheel.files[f"precast/_C/{file.path}"], file.content_bytes)

    @property
    def released(self) -> bool:
        """Whether this is a labelled wheel, for whoever installs it and not for the machine that built it."""
        return self.info.mode is BuildMode.RELEASE

    @property
    def machine(self) -> str | None:
        """The architecture of the host libraries."""
        return self.info.host[0].machine if self.info.host else None


class Verdict(str, Enum):
    """What a guard says: ``blocked`` when it could not look, ``not asked`` when there is nothing to look at."""

    PASSED = "passed"
    REFUSED = "refused"
    BLOCKED = "blocked"
    NOT_ASKED = "not asked"


@dataclass(frozen=True, slots=True)
class Guard:
    """One promise, and the check that refuses a wheel that breaks it.

    ``spared`` gives the reason why the promise is not made for a wheel, and None where it is.
    """

    name: str
    promise: str
    check: Callable[[Audited], Iterator[Violation]]
    spared: Callable[[Audited], str | None] = lambda audited: None


@dataclass(frozen=True, slots=True)
class Result:
    """What one guard said of one wheel, or of the checkout."""

    guard: str
    verdict: Verdict
    note: str
    violations: tuple[Violation, ...]


def judge(guard: Guard, audited: Audited) -> Result:
    """Ask one guard."""
    found: list[Violation] = []
    try:
        reason = guard.spared(audited)
        if reason is not None:
            return Result(guard.name, Verdict.NOT_ASKED, reason, ())
        found += guard.check(audited)
    except NoManifest:
        if not found:
            return Result(guard.name, Verdict.BLOCKED, "no manifest to hold the wheel against", ())
    return Result(guard.name, Verdict.REFUSED if found else Verdict.PASSED, "", tuple(found))


def unless_released(audited: Audited) -> str | None:
    """The reason to spare what is not published."""
    return None if audited.released else f"a {audited.info.mode.value} wheel is not published"


def same(check: str, where: str, wanted: object, found: object) -> Iterator[Violation]:
    """A violation unless both are equal."""
    if wanted != found:
        yield Violation(check, where, str(wanted), str(found))
