"""Import every guard of a wheel in a child process: a module that fits this machine must be imported without a crash.

A crash is for example a schema that C++ and Python both define: torch ends the process while it opens the library.
"""

from __future__ import annotations

import importlib
import itertools
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from precast._builder import process, python
from precast.core import opening
from precast.core.reasons import Rejection
from precast.errors import PrebuiltRefused

_SECONDS = 300  # for all modules of a wheel; the first of them imports torch
_BEGUN, _IMPORTED, _SKIPPED = "begun", "imported", "skipped"


def run(root: Path, modules: Sequence[str], work: Path) -> tuple[int, list[Rejection]]:
    """Import modules of the unpacked wheel at ``root``, given by path; return how many were, and the failures.

    A module that does not fit this machine, or needs a package that is not here, is left out.
    """
    left, imported, found = list(modules), 0, list[Rejection]()
    while left:
        report = work / f"trial-{len(left)}"
        command = python.command(__name__, str(root), str(report), *left)
        status, said = process.run(command, log=work / "trial.log", environment=python.environment())
        verdicts = list(_read(report))
        imported += sum(verdict == _IMPORTED for _, verdict in verdicts)
        found += [_failed(name, verdict) for name, verdict in verdicts if verdict not in (_IMPORTED, _SKIPPED, _BEGUN)]
        last = verdicts[-1] if verdicts else (left[0], _BEGUN)
        if last[1] == _BEGUN:
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            tail = (said.strip().splitlines() or ["nothing was said"])[-1]
            found.append(Rejection("import", "a process that goes on", f"{how}: {tail}", last[0].replace("/", ".")))
        left = left[left.index(last[0]) + 1 :]
    return imported, found


def _failed(name: str, why: str) -> Rejection:
    return Rejection("import", "a module that can be imported, as it fits this machine", why, name.replace("/", "."))


def _read(report: Path) -> Iterator[tuple[str, str]]:
    """The last verdict of each module, in order."""
    if report.is_file():
        yield from dict(map(json.loads, report.read_text(encoding="utf-8").splitlines())).items()


def _try(name: str, root: Path) -> str:
    """Import one module in this process; return the verdict."""
    *folders, last = PurePosixPath(name).parts
    place = root.joinpath(*(folders or [last]))
    try:
        opening.fit(opening.wheel_in(opening.manifest_of(place, last)), last)  # imports nothing
    except PrebuiltRefused:
        return _SKIPPED  # for another torch, Python or machine
    library = place / f"{last}.so"
    packages = itertools.takewhile(lambda one: "." not in one, folders)  # torch-2.10 is none
    try:
        importlib.import_module(".".join(packages if library.is_file() else [*folders, last]))
        if library.is_file():  # a guard that only torch.ops.load_library takes
            _open(library)
    except Exception as error:  # noqa: BLE001 - the module is somebody else's, and whatever it raises is the verdict
        return _why(error, root)
    return _IMPORTED


def _open(guard: Path) -> None:
    """Open the library behind a guard as a changed call of its package does."""
    import torch

    torch.ops.load_library(opening.resolve(str(guard)))


def _why(error: Exception, root: Path) -> str:
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing and not (root / missing).exists() and not (root / f"{missing}.py").exists():
        return _SKIPPED
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def main(arguments: list[str]) -> None:
    """In the child: import the modules in turn, and write down each verdict at once."""
    root, report, *modules = arguments
    sys.path.insert(0, root)
    signal.alarm(_SECONDS)
    for name in modules:
        _write(Path(report), name, _BEGUN)
        _write(Path(report), name, _try(name, Path(root)))


def _write(report: Path, name: str, verdict: str) -> None:
    with report.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps((name, verdict))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
