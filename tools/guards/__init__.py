"""The guards of a release. Each has a name, a promise, and a check that refuses a wheel that breaks it."""

from __future__ import annotations

from pathlib import Path

from precast._builder.matrix import Matrix
from precast.core.manifest import BuildInfo, ManifestError
from tools.guards.archive import check_metadata, check_reproducible, check_size
from tools.guards.libraries import check_bundled, check_glibc, check_hardening, check_paths, check_python
from tools.guards.manifest import check_manifest, check_origin
from tools.guards.sbom import check_sbom
from tools.guards.subject import (
    Asked,
    Audited,
    Guard,
    Result,
    Verdict,
    judge,
    unless_released,
)
from tools.guards.symbols import check_symbols
from tools.guards.targets import check_targets
from tools.guards.workflows import check_workflows
from tools.shared import binaries
from tools.shared.wheel import MANIFEST, Wheel


def _unless_repaired(audited: Audited) -> str | None:
    if audited.wheel.below(f"{audited.wheel.dist_info}/sboms/"):
        return None  # the wheel's claims about itself must be true
    return unless_released(audited) if audited.asked.repaired else "comes with `python -m tools repair`"


def _unless_published(audited: Audited) -> str | None:
    return unless_released(audited) or (
        None if audited.asked.publishing else "asked by --publish, before others get it"
    )


GUARDS = (
    Guard(
        "manifest", "every claim of the manifest follows from the bytes; the sources are those it names", check_manifest
    ),
    Guard(
        "targets", "the device code and host libraries that matrix.toml plans for the label, no others", check_targets
    ),
    Guard("symbols", "every symbol taken from torch is there in every torch that the library claims", check_symbols),
    Guard("python", "no library needs a Python", check_python),
    Guard("bundled", "no copy of torch, CUDA or OpenMP, nothing grafted, nothing else needed", check_bundled),
    Guard("glibc", "no symbol newer than the platform tag promises", check_glibc, unless_released),
    Guard("hardening", "no run path, text relocation, executable stack or stray export", check_hardening),
    Guard("size", "within the budget of the label; a slim wheel with all that the whole one would have", check_size),
    Guard("metadata", "names, tags, requirements and RECORD agree, and an index takes the wheel", check_metadata),
    Guard("sbom", "the bill of materials is valid CycloneDX and true of this wheel", check_sbom, _unless_repaired),
    Guard(
        "reproducible", "nothing tells two builds apart; with --twin, two builds are the same bytes", check_reproducible
    ),
    Guard("paths", "no binary names a folder of the machine that built it", check_paths),
    Guard("origin", "made from a known commit, with nothing changed beside it", check_origin, _unless_published),
)
# The guard of the checkout: its promise is not about a wheel.
WORKFLOWS = "workflows"
WORKFLOWS_PROMISE = "the workflows name no version, runner, image or label that matrix.toml does not"


def judge_wheel(wheel: Wheel, known: Matrix, asked: Asked) -> tuple[Result, ...]:
    """Run every guard for wheels."""
    try:
        manifest = BuildInfo.from_json(wheel.files[MANIFEST].decode("utf-8"))
    except (KeyError, ManifestError, UnicodeDecodeError):
        manifest = None  # the manifest guard reports why
    audited = Audited(wheel, manifest, known, _libraries(wheel), asked)
    return tuple(judge(guard, audited) for guard in GUARDS)


def judge_checkout(root: Path, known: Matrix) -> Result:
    """Run the guard for workflows."""
    folder = root / ".github" / "workflows"
    if not folder.is_dir():
        return Result(WORKFLOWS, Verdict.NOT_ASKED, "no workflows here, as in an sdist", ())
    found = tuple(check_workflows(folder, known))
    return Result(WORKFLOWS, Verdict.REFUSED if found else Verdict.PASSED, "", found)


def _libraries(wheel: Wheel) -> dict[str, binaries.LibraryFacts]:
    """The facts of all readable host libraries, even those that the manifest does not list."""
    found = {}
    for name, data in wheel.below("precast/_C/").items():
        if name.startswith("host/"):
            try:
                found[name] = binaries.read_library(data)
            except binaries.Unreadable:  # the manifest guard reads it again and reports why
                continue
    return found
