"""The types of a guard, its subject and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from precast._builder import packing
from precast._builder.matrix import Matrix
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, by_file
from precast.core.reasons import Rejection
from tools.shared import binaries
from tools.shared.wheel import Wheel

TORCH_LISTS = Path(__file__).resolve().parents[1] / "torch_symbols"


class NoManifest(ValueError):
    """A guard needs the manifest of a wheel that has none; the manifest guard reports this."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The requirements for a wheel besides the matrix.

    ``repaired`` requires the policy's platform tag and the additions of ``repair``. ``twin`` is a second build of the
    wheel. ``torch_lists`` is the folder with the symbols of each torch that has a classic library. ``only_torch`` is
    the minor release that a slim wheel serves. ``publishing`` requires a known origin, for a wheel that others get.
    """

    repaired: bool = True
    twin: Path | None = None
    torch_lists: Path = TORCH_LISTS
    only_torch: str | None = None
    publishing: bool = False


@dataclass(frozen=True, slots=True)
class Audited:
    """One wheel and its requirements. ``libraries`` are the readable host libraries, by path."""

    wheel: Wheel
    manifest: BuildInfo | None
    matrix: Matrix
    libraries: Mapping[str, binaries.LibraryFacts]
    asked: Asked

    @property
    def info(self) -> BuildInfo:
        """The manifest; raises NoManifest if there is none."""
        if self.manifest is None:
            raise NoManifest
        return self.manifest

    def image(self, file: DeviceFile) -> bytes:
        """The device code of one manifest entry; raises NotPacked if it is not in its file."""
        packed = self.wheel.files[f"precast/_C/{file.path}"]
        return packing.image(packed, file.offset, file.content_bytes, file.content_sha256)

    def content(self, path: str) -> bytes:
        """All that a file of device code unpacks to; raises NotPacked if its entries cover more or less of it."""
        packed = self.wheel.files[f"precast/_C/{path}"]
        return packing.unpack(packed, by_file(self.info.device)[path][-1].end)

    @property
    def released(self) -> bool:
        """Whether this is a release wheel, for any machine and not only for the one that built it."""
        return self.info.mode is BuildMode.RELEASE

    @property
    def machine(self) -> str | None:
        """The architecture of the host libraries."""
        return self.info.host[0].machine if self.info.host else None


class Verdict(str, Enum):
    """A guard's verdict: ``blocked`` if it could not check, ``not asked`` if there is nothing to check."""

    PASSED = "passed"
    REFUSED = "refused"
    BLOCKED = "blocked"
    NOT_ASKED = "not asked"


@dataclass(frozen=True, slots=True)
class Guard:
    """One promise, and the check that refuses a wheel that breaks it.

    ``spared`` returns the reason why the promise does not apply to a wheel, or None if it applies.
    """

    name: str
    promise: str
    check: Callable[[Audited], Iterator[Rejection]]
    spared: Callable[[Audited], str | None] = lambda audited: None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one guard for one wheel or for the checkout."""

    guard: str
    verdict: Verdict
    note: str
    violations: tuple[Rejection, ...]


def judge(guard: Guard, audited: Audited) -> Result:
    """Run one guard."""
    found: list[Rejection] = []
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
    """The reason to spare a wheel that is not published."""
    return None if audited.released else f"a {audited.info.mode.value} wheel is not published"


def same(check: str, where: str, wanted: object, found: object) -> Iterator[Rejection]:
    """Yield a violation unless both values are equal."""
    if wanted != found:
        yield Rejection(check, str(wanted), str(found), where)
