"""Write wheels in one canonical form, which depends only on the files, their names and one timestamp.

It does not depend on the user, place, time, order or umask.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from email import message_from_string
from email.message import Message
from pathlib import Path

from precast._builder import staging
from precast.errors import KernelError

_EARLIEST, _LATEST = 315532800, 4354819198  # 1980 to 2107: zip archives have no other time, and only even seconds
UNIX = 3
PERMISSIONS = 0o100644 << 16  # a plain file
PROGRAM = 0o100755 << 16  # a plain file that installers make executable
_PLAIN = re.compile(r"[^\x00-\x1f\\\x7f]+")
LEVEL = 9  # 2 % smaller than level 6, for two more seconds per wheel


def headers(data: bytes) -> Message:
    """The headers of METADATA or WHEEL, whose values are text.

    Read from bytes, a value that is not ASCII is an object of another class, on which functions for text fail.
    """
    return message_from_string(data.decode("utf-8", "replace"))


def record_rows(record: bytes) -> Iterator[list[str]]:
    """The rows of RECORD, of path, hash and size; a part that cannot be read is a row of the error alone."""
    try:
        yield from csv.reader(io.StringIO(record.decode("utf-8", "replace")))
    except csv.Error as error:
        yield [str(error)]


def moment_of(epoch: int) -> datetime:
    """The nearest time that a zip archive can hold for a SOURCE_DATE_EPOCH."""
    return datetime.fromtimestamp(min(max(epoch - epoch % 2, _EARLIEST), _LATEST), timezone.utc)


def stated_epoch(environ: Mapping[str, str] = os.environ) -> int | None:
    """SOURCE_DATE_EPOCH; None if it is not set or empty. KernelError if it is no number of seconds."""
    said = environ.get("SOURCE_DATE_EPOCH", "")
    if not re.fullmatch(r"[0-9]{0,18}", said):
        raise KernelError(
            "SOURCE_DATE_EPOCH cannot be read",
            found=repr(said[:40]),
            needed="a number of seconds since 1970, such as 1700000000",
            fix="unset SOURCE_DATE_EPOCH",
        )
    return int(said) if said else None


def write_wheel(
    path: Path, dist_info: str, files: Mapping[str, bytes], epoch: int, programs: Collection[str] = ()
) -> None:
    """Write a wheel in canonical form, with a RECORD of these files, atomically. ``programs`` are executable files.

    KernelError for a file outside of the wheel.
    """
    record = f"{dist_info}/RECORD"
    outside = sorted(name for name in files if not _PLAIN.fullmatch(name) or {"", ".", ".."} & {*name.split("/")})
    if outside:
        raise KernelError(
            f"{path.name} cannot be written",
            found=f"the path {outside[0]!r} of a file in it",
            needed="relative paths without .., backslashes and control characters",
            fix="give the file a plain relative path, and build again",
        )
    names = ordered({*files, record}, record)
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows(
        (name, "", "") if name == record else (name, record_hash(files[name]), len(files[name])) for name in names
    )
    with staging.staged(path.parent) as staged:
        made = staged.path(path.name)
        with zipfile.ZipFile(made, "w") as archive:
            for name in names:
                entry = zipfile.ZipInfo(name, moment_of(epoch).timetuple()[:6])
                entry.create_system, entry.external_attr = UNIX, PROGRAM if name in programs else PERMISSIONS
                entry.compress_type = zipfile.ZIP_DEFLATED
                data = rows.getvalue().encode("utf-8") if name == record else files[name]
                archive.writestr(entry, data, compresslevel=LEVEL)
        made.chmod(0o644)  # independent of the umask
        staged.place()


def ordered(names: Iterable[str], record: str) -> list[str]:
    """The package first, then its metadata, RECORD last (as the binary distribution format recommends)."""
    return sorted(names, key=lambda name: (name == record, name.partition("/")[0].endswith(".dist-info"), name))


def record_hash(data: bytes) -> str:
    """The hash of a file as a row of RECORD has it."""
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()}"
