"""A wheel as it lies on disk: its name, its metadata, its files. Standard library only, and nothing is believed yet."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path

_NAME = re.compile(r"(?P<name>\w+)-(?P<version>[^-]+)-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl")


class NotAWheel(ValueError):
    """The file cannot be read as a wheel at all."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel: ``files`` maps each archive path to its content, ``repeated`` lists what is in the archive twice."""

    path: Path
    name: str
    version: str
    tag: tuple[str, str, str]
    files: Mapping[str, bytes]
    repeated: tuple[str, ...]

    @property
    def dist_info(self) -> str:
        """The folder of the metadata."""
        return f"{self.name}-{self.version}.dist-info"

    def metadata(self, file: str) -> Message:
        """METADATA or WHEEL, parsed; empty when it is missing, which the audit reports."""
        return message_from_bytes(self.files.get(f"{self.dist_info}/{file}", b""))

    def below(self, folder: str) -> dict[str, bytes]:
        """The files below a folder, by their path inside it."""
        return {name.removeprefix(folder): data for name, data in self.files.items() if name.startswith(folder)}


def read_wheel(path: Path) -> Wheel:
    """Read a wheel whole: they are small."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise NotAWheel(f"{path.name}: not the name of a wheel")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            files = {entry.filename: archive.read(entry) for entry in entries}
    except (OSError, zipfile.BadZipFile) as error:
        raise NotAWheel(f"{path}: {error}") from error
    names = [entry.filename for entry in entries]
    repeated = tuple(sorted({name for name in names if names.count(name) > 1}))
    tag = (match["python"], match["abi"], match["platform"])
    return Wheel(path, match["name"], match["version"], tag, files, repeated)


def record_errors(wheel: Wheel) -> Iterator[tuple[str, str, str]]:
    """Every disagreement between RECORD and the archive, as (file, wanted, found)."""
    record = f"{wheel.dist_info}/RECORD"
    listed: dict[str, tuple[str, str]] = {}
    for row in csv.reader(io.StringIO(wheel.files.get(record, b"").decode("utf-8", "replace"))):
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
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            found = (f"sha256={digest}", str(len(data)))
            if listed[name] != found:
                yield name, " ".join(listed[name]), " ".join(found)
