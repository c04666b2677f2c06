"""A folder of finished files, each with a record of the cell that made it: ``wheel-cu130-x86_64.json``.

A record is written before its file appears, and the file appears by one rename. So a file without a record comes from
elsewhere, a file with another hash was changed later, and a record without a file means an interruption.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from precast.errors import KernelError

SDIST_CELL = "sdist"
STAGING = ".staging-"


@dataclass(frozen=True, slots=True)
class Record:
    """One finished file. ``key`` is the digest of all its inputs, ``seconds`` the time that it took to make."""

    cell: str
    file: str
    sha256: str
    bytes: int
    key: str
    seconds: float


def digest(*words: str) -> str:
    """One digest over words, in their order."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def read(folder: Path) -> dict[str, Record]:
    """Every record of a folder, by its cell."""
    return {path.stem: _read(path) for path in sorted(folder.glob("*.json"))}


def finished(folder: Path, cell: str, key: str) -> Record | None:
    """The record of a file that was made from exactly these inputs and is unchanged, or None."""
    path = folder / f"{cell}.json"
    if not path.is_file():
        return None
    record = _read(path)
    if record.key != key or not (folder / record.file).is_file():
        return None
    return None if _changed(folder, record) else record


def put(folder: Path, cell: str, key: str, made: Path, seconds: float) -> Record:
    """Put a finished file into the folder, and remove the cell's previous file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cell}.json"
    if path.is_file():
        (folder / _read(path).file).unlink(missing_ok=True)
    data = made.read_bytes()
    record = Record(cell, made.name, hashlib.sha256(data).hexdigest(), len(data), key, round(seconds, 1))
    staged = Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))  # on the same file system
    try:
        _write(staged / path.name, json.dumps(asdict(record), indent=1).encode() + b"\n")
        _write(staged / made.name, data)
        (staged / path.name).replace(path)
        (staged / made.name).replace(folder / made.name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return record


def clear_staging(folder: Path) -> None:
    """Remove leftovers of an interruption; the caller must know that no other process uses the folder."""
    for left in folder.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)


def problems(folder: Path, expected: Mapping[str, str], *, complete: bool) -> Iterator[str]:
    """The differences of a folder from the expected files (cell -> file name), each line naming one file.

    Without ``complete``, files may be missing, as in an unfinished release.
    """
    records = read(folder)
    for cell in sorted(set(records) - set(expected)):
        yield f"{cell}.json: no cell of the plan is called that"
    for cell, name in expected.items():
        record = records.get(cell)
        there = (folder / name).is_file()
        if record is None:
            if there:
                yield f"{name}: there, without the record {cell}.json"
            elif complete:
                yield f"{name}: missing"
        elif record.file != name and complete:
            yield f"{record.file}: the plan says {name}"
        elif not (folder / record.file).is_file():
            if complete:
                yield f"{record.file}: missing, though {cell}.json is there"
        elif found := _changed(folder, record):
            yield f"{record.file}: sha256 {found}, and {cell}.json says {record.sha256}"
    known = {f"{cell}.json" for cell in records} | {record.file for record in records.values()} | set(expected.values())
    there_now = (path.name for path in folder.iterdir() if not path.name.startswith(STAGING))
    for stray in sorted(name for name in there_now if name not in known):
        yield f"{stray}: no cell of the plan makes that"


def _changed(folder: Path, record: Record) -> str | None:
    found = hashlib.sha256((folder / record.file).read_bytes()).hexdigest()
    return None if found == record.sha256 else found


def _read(path: Path) -> Record:
    try:
        record = Record(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise KernelError(
            f"{path} is not a record of a finished wheel",
            found=str(error),
            needed="what `python -m tools build` writes next to each wheel",
            fix="remove it, and build that cell again",
        ) from error
    if record.cell != path.stem or Path(record.file).name != record.file:
        raise KernelError(f"{path} names the cell {record.cell!r} and the file {record.file!r}: not its own")
    return record


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
