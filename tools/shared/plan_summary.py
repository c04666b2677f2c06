"""The size of a plan: its jobs and wheels, the torch installations that they serve, and those that were executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precast._builder.matrix import Matrix
from precast.core.manifest import BuildInfo, ManifestError
from tools.shared import evidence, served
from tools.shared.cells import Plan
from tools.shared.columns import columns
from tools.shared.evidence import Evidence, EvidenceError, Found
from tools.shared.served import TorchCell
from tools.shared.wheel import NotAWheel, read_wheel

MANIFEST = "precast/_C/build_info.json"

Cells = tuple[TorchCell, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """The torch installations by state: ``planned`` is ``built`` plus ``declared``; ``executed`` is part of ``built``.

    ``without_gpu`` are CUDA builds of torch on which only the CPU kernels ran: built, but not executed.
    """

    cells: Cells
    planned: Cells
    built: Cells
    executed: Found
    without_gpu: Found

    @property
    def declared(self) -> Cells:
        """The planned cells that are not built."""
        return tuple(cell for cell in self.planned if cell not in self.built)


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """Finished wheels: their number, their total size, and the cells that their manifests serve."""

    count: int
    bytes: int
    serves: Cells


def split(plan: Plan, known: Matrix, found: Sequence[Evidence]) -> Split:
    """Count the cells; EvidenceError for an executed cell that cannot be built according to the matrix."""
    cells = served.torch_cells(known, plan.only_torch)
    built = served.built(plan, known, cells)
    executed = evidence.executed(found, cells)
    for cell, files in executed.items():
        if cell not in built:
            raise EvidenceError(
                f"{files[0].path}: torch {cell.torch} {cell.build.name}, Python {cell.python}, {cell.machine} was "
                f"executed, and no wheel of the plan for {plan.event} that can be built serves it: see not_built in "
                "matrix.toml"
            )
    return Split(cells, served.planned(plan, known, cells), built, executed, evidence.without_gpu(found, cells))


def wheelhouse(folder: Path, cells: Cells) -> Wheelhouse:
    """Read the wheels of a folder; NotAWheel for a file without our manifest, or if there is no wheel."""
    paths = sorted(folder.glob("*.whl"))
    if not paths:
        raise NotAWheel(f"{folder}: no wheel in it; python -m tools build makes one")
    infos = list(map(_manifest, paths))
    return Wheelhouse(len(paths), sum(path.stat().st_size for path in paths), served.serving(infos, cells))


def _manifest(path: Path) -> BuildInfo:
    try:
        return BuildInfo.from_json(read_wheel(path).files[MANIFEST].decode("utf-8"))
    except (KeyError, UnicodeDecodeError, ManifestError) as error:
        raise NotAWheel(f"{path}: {MANIFEST} cannot be read: {error}") from error


def of(plan: Plan, known: Matrix, found: Sequence[Evidence], folder: Path | None = None) -> str:
    """The summary as text."""
    counted = split(plan, known, found)
    rows = [("", "planned", "built")]
    for name, cells in plan.matrices().items():
        rows.append((name, str(len(cells)), str(sum(not cell.not_built for cell in cells))))
    rows += [("sdist", "1", "1"), ("", "", "")]
    text = f"{plan.event}\n{columns([*rows, *_ways(counted)])}\n"
    if folder is not None:
        there = wheelhouse(folder, counted.cells)
        text += (
            f"\n{there.count} wheels of {there.bytes / 1e6:.2f} MB together serve {len(there.serves)} of them; "
            f"one wheel for each would be {len(there.serves)}.\n"
        )
    return text


def _ways(counted: Split) -> list[tuple[str, str, str]]:
    built, executed = len(counted.built), len(counted.executed)
    return [
        ("torch x CUDA x Python x architecture", str(len(counted.cells)), ""),
        ("  served", str(len(counted.planned)), str(built)),
        ("    executed", "", str(executed)),
        *_files("      ", counted.executed),
        ("    not executed", "", str(built - executed)),
        ("      of these, CUDA builds whose CPU kernels ran", "", str(len(counted.without_gpu))),
        *_files("        ", counted.without_gpu),
        ("  only declared", str(len(counted.declared)), ""),
        ("  wheels, if each had its own", str(len(counted.cells)), str(built)),
    ]


def _files(indent: str, found: Found) -> list[tuple[str, str, str]]:
    """Each file of evidence with the number of its cells."""
    names = sorted({file.path.name for files in found.values() for file in files})
    count = {name: sum(name in (file.path.name for file in files) for files in found.values()) for name in names}
    return [(f"{indent}{name}", "", str(count[name])) for name in names]
