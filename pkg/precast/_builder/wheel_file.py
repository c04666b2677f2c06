"""Write wheels in one canonical form, which depends only on the files, their names and one timestamp.

It does not depend on the user, place, time, order or umask.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from precast._builder import staging
from precast.errors import KernelError

_EARLIEST = 315532800  # 1980-01-01: zip archives have no earlier time, and only even seconds
UNIX = 3
PERMISSIONS = 0o100644 << 16  # a plain file
PROGRAM = 0o100755 << 16  # a plain file that installers make executable
_PLAIN = re.compile(r"[^\x00-\x1f\\\x7f]+")
LEVEL = 9  # 2 % smaller than level 6, for two more seconds per wheel


def moment_of(epoch: int) -> datetime:
    """The nearest time that a zip archive can hold for a SOURCE_DATE_EPOCH."""
    return datetime.fromtimestamp(max(epoch - epoch % 2, _EARLIEST), timezone.utc)


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
