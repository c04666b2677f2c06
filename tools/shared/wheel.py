"""Read a wheel from disk: name, metadata, files. Reading does not verify any claim."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.message import Message
from pathlib import Path

from precast._builder import wheel_file
from precast._builder.archives import BadArchive, open_zip

MANIFEST = "precast/_C/build_info.json"
_NAME = re.compile(r"(?P<name>\w+)-(?P<version>[^-]+)-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl")

_MOST_BYTES = 256 << 20  # limit for a wheel, packed and unpacked; ours have 5 MB and 20 MB
_MOST_TEXT = 4 << 20  # limit for a file that is parsed as a whole: metadata, a manifest; ours have 100 kB


class NotAWheel(ValueError):
    """The file cannot be read as a wheel at all."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The archive's metadata of one file."""

    name: str
    moment: tuple[int, int, int, int, int, int]
    system: int
    attributes: int
    compression: int
    extra: bytes


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel: ``files`` maps each archive path to its content; ``entries`` are in the order of the archive."""

    path: Path
    name: str
    version: str
    tag: tuple[str, str, str]
    files: Mapping[str, bytes]
    entries: tuple[Entry, ...]

    @property
    def dist_info(self) -> str:
        """The folder of the metadata."""
        return f"{self.name}-{self.version}.dist-info"

    def metadata(self, file: str) -> Message:
        """METADATA or WHEEL, parsed; empty if it is missing, which the audit reports."""
        return wheel_file.headers(self.files.get(f"{self.dist_info}/{file}", b""))

    def below(self, folder: str) -> dict[str, bytes]:
        """The files below a folder, by their relative paths."""
        return {name.removeprefix(folder): data for name, data in self.files.items() if name.startswith(folder)}


def read_wheel(path: Path) -> Wheel:
    """Read a whole wheel into memory. NotAWheel if it is corrupted, or unpacks to far more than a wheel should."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise NotAWheel(f"{path.name}: not the name of a wheel")
    try:
        with open_zip(path, _MOST_BYTES) as archive:
            listed = archive.listed
            for entry in listed:
                _check_entry(entry)
            files = {entry.filename: archive.read(entry) for entry in archive.files}
    except BadArchive as error:
        raise NotAWheel(f"{path}: {error}") from error
    entries = tuple(
        Entry(e.filename, e.date_time, e.create_system, e.external_attr, e.compress_type, e.extra) for e in listed
    )
    tag = (match["python"], match["abi"], match["platform"])
    return Wheel(path, match["name"], match["version"], tag, files, entries)


def _check_entry(entry: zipfile.ZipInfo) -> None:
    """Raise BadArchive for a file that is too large to parse, or has an invalid date."""
    if entry.file_size > _MOST_TEXT and (".dist-info/" in entry.filename or entry.filename == MANIFEST):
        raise BadArchive(f"{entry.filename} has {entry.file_size} bytes, more than the {_MOST_TEXT} that are parsed")
    try:
        datetime(*entry.date_time, tzinfo=timezone.utc)
    except ValueError as error:
        raise BadArchive(f"{entry.filename} is of {entry.date_time}: {error}") from error


def record_errors(wheel: Wheel) -> Iterator[tuple[str, str, str]]:
    """Every disagreement between RECORD and the archive, as (file, wanted, found)."""
    record = f"{wheel.dist_info}/RECORD"
    listed: dict[str, tuple[str, str]] = {}
    for row in wheel_file.record_rows(wheel.files.get(record, b"")):
        if len(row) != 3:
            yield record, "rows of path, hash, size", repr(row)
        elif row[0] in listed:
            yield row[0], "listed once", "listed twice"
        else:
            listed[row[0]] = (row[1], row[2])
    for name in sorted(set(listed) | set(wheel.files)):
        if name == record:
            continue
        if name not in listed:
            yield name, "listed in RECORD", "not listed"
        elif name not in wheel.files:
            yield name, "in the wheel, as RECORD says", "not there"
        else:
            data = wheel.files[name]
            found = (wheel_file.record_hash(data), str(len(data)))
            if listed[name] != found:
                yield name, " ".join(listed[name]), " ".join(found)


def expected_entries(wheel: Wheel) -> tuple[Entry, ...]:
    """The entries of this wheel in canonical form, with the time of its first entry."""
    moment = wheel.entries[0].moment if wheel.entries else (1980, 1, 1, 0, 0, 0)
    names = wheel_file.ordered(wheel.files, f"{wheel.dist_info}/RECORD")
    how = (wheel_file.UNIX, wheel_file.PERMISSIONS, zipfile.ZIP_DEFLATED, b"")
    return tuple(Entry(name, moment, *how) for name in names)
