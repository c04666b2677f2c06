"""The files of docs/evidence as values, checked against the matrix: they record what was really executed.

A run names one torch installation (version, build, Python, architecture) and the parts of precast that ran there. It
counts only for that installation, and for a CUDA build only if it used a GPU.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast._builder.matrix import DEFAULT, Matrix
from precast._builder.tables import MatrixError, Table
from precast.core.torch_abi import ANY_TORCH, Stable, TorchAbi, parse_torch_abi
from precast.core.version import Release, TorchVersion
from precast.errors import KernelError
from tools.shared.served import TorchCell, torch_cells

SCHEMA = 1
DEVICES = ("cpu", "cuda")
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "evidence"


class EvidenceError(KernelError):
    """A file of evidence has an impossible claim; the message names file, run and key."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution. ``host`` is what bound the library to torch: an adapter, or ``torch-table-1`` for torch itself.

    ``wheel`` is the label of the wheel, None if there was no wheel.
    """

    torch: TorchVersion
    build: str
    python: Release
    machine: str
    host: TorchAbi
    wheel: str | None
    device: str
    hardware: str
    checks: tuple[str, ...]

    def is_of(self, cell: TorchCell) -> bool:
        """Whether the run used this torch installation; patch releases count as equal, because they keep the ABI."""
        ours = (self.torch.release, self.build, self.python, self.machine)
        return ours == (TorchVersion.parse(cell.torch).release, cell.build.name, cell.python, cell.machine)

    def executes(self, cell: TorchCell) -> bool:
        """Whether the run covers this torch installation; a CUDA build must have used a GPU."""
        return self.is_of(cell) and (cell.build.cuda is None or self.device == "cuda")

    def __str__(self) -> str:
        return f"torch {self.torch} {self.build}, Python {self.python}, {self.machine}, on {self.device}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One file: runs of one command on one state of the sources; ``commit`` is None if it was not recorded."""

    path: Path
    title: str
    date: dt.date
    commit: str | None
    command: str
    runs: tuple[Run, ...]


def load(folder: Path, matrix: Matrix) -> tuple[Evidence, ...]:
    """Read every file of a folder, in the order of names, and check it against the matrix."""
    return tuple(read(path, matrix) for path in sorted(folder.glob("*.json")))


def read(path: Path, matrix: Matrix) -> Evidence:
    """Read one file; EvidenceError for anything unknown, missing or impossible."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise EvidenceError(f"{path}: needed an object, found {type(document).__name__}")
    try:
        evidence = _evidence(path, Table(document, path.name))
    except MatrixError as error:
        raise EvidenceError(f"{path}: {error}") from error
    for problem in _contradictions(evidence, matrix):
        raise EvidenceError(f"{path}: {problem}")
    return evidence


def _evidence(path: Path, root: Table) -> Evidence:
    if root.take("schema", int) != SCHEMA:
        raise MatrixError(f"{root.where}: schema must be {SCHEMA}")
    evidence = Evidence(
        path=path,
        title=root.parsed("title", _said),
        date=root.parsed("date", dt.date.fromisoformat),
        commit=_text_or_null(root, "commit", _commit),
        command=root.parsed("command", _said),
        runs=tuple(map(_run, root.tables("runs", "torch"))),
    )
    root.finish()
    return evidence


def _run(table: Table) -> Run:
    run = Run(
        torch=table.parsed("torch", TorchVersion.parse),
        build=table.take("build", str),
        python=table.parsed("python", Release.parse),
        machine=table.take("machine", str),
        host=table.parsed("host", parse_torch_abi),
        wheel=_text_or_null(table, "wheel", _said),
        device=table.take("device", str),
        hardware=table.parsed("hardware", _said),
        checks=table.all_parsed("checks", _said),
    )
    table.finish()
    return run


def _text_or_null(table: Table, key: str, parser: Callable[[str], str]) -> str | None:
    if table.values.get(key, "") is None:
        del table.values[key]
        return None
    return table.parsed(key, parser)


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("it says nothing")
    return text


def _commit(text: str) -> str:
    if re.fullmatch(r"[0-9a-f]{40}", text) is None:
        raise ValueError(f"not a commit: {text!r}; needed 40 lower-case hexadecimal digits")
    return text


def _contradictions(evidence: Evidence, matrix: Matrix) -> Iterator[str]:
    """The contradictions of a run to the matrix or to the other runs of its file."""
    cells = torch_cells(matrix)
    releases = {release.release: release for release in matrix.releases}
    labels = [spec.name for spec in matrix.labels]
    if not evidence.runs:
        yield "no runs"
    for index, run in enumerate(evidence.runs):
        where = f"runs[{index}], {run}"
        if run in evidence.runs[:index]:
            yield f"{where}: it is there twice"
        cell = next((cell for cell in cells if run.is_of(cell)), None)
        if cell is None or run.torch.is_prerelease or run.torch.local:
            yield f"{where}: matrix.toml has no such torch, build, Python and architecture"
            continue
        abi = matrix.binding_of(releases[run.torch.release], cell.build)
        # Runs from before there was one library for every torch name the library of those without an adapter.
        before = Stable(matrix.stable_floor) if abi == ANY_TORCH else abi
        if run.host not in (abi, before):
            yield f"{where}: it is bound by {abi}, not {run.host}"
        if run.wheel is not None and run.wheel not in labels:
            yield f"{where}: no label {run.wheel!r}; needed null or one of {', '.join(labels)}"
        if run.device not in DEVICES:
            yield f"{where}: device must be one of {', '.join(DEVICES)}"
        if run.device == "cuda" and (cell.build.cuda is None or run.wheel in (None, "cpu")):
            yield f"{where}: a GPU needs a CUDA build of torch and a wheel with device code, such as {DEFAULT!r}"
        if not run.checks:
            yield f"{where}: checks must say what was executed"


Found = dict[TorchCell, tuple[Evidence, ...]]


def executed(evidence: Sequence[Evidence], cells: Sequence[TorchCell]) -> Found:
    """The cells that some run executes, each with its files of evidence."""
    found = {cell: tuple(e for e in evidence if any(run.executes(cell) for run in e.runs)) for cell in cells}
    return {cell: files for cell, files in found.items() if files}


def without_gpu(evidence: Sequence[Evidence], cells: Sequence[TorchCell]) -> Found:
    """The CUDA builds on which only the CPU kernels ran, each with its files of evidence."""
    done = executed(evidence, cells)
    found = {cell: tuple(e for e in evidence if any(run.is_of(cell) for run in e.runs)) for cell in cells}
    return {cell: files for cell, files in found.items() if files and cell not in done}
