"""Make the sdist: what PyPI gets for every other machine, and what each wheel of a release is built from.

Its bytes follow from the tree alone: names are sorted, owners and modes are plain, every time is that of the commit.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from precast._builder import provenance
from precast._version import __version__
from precast.errors import KernelError
from tools.shared import wheelhouse
from tools.shared.wheelhouse import Record

ROOT = Path(__file__).resolve().parents[2]
NAME = f"precast-{__version__}.tar.gz"
_BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def make(out: Path) -> tuple[Record, bool]:
    """Make the sdist unless it is up to date; return its record and whether it is new."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="precast-sdist-") as folder:
        done = subprocess.run(
            [sys.executable, "-c", _BUILD, folder], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise KernelError(f"the sdist cannot be made\n{done.stdout}{done.stderr}")
        made = Path(folder) / NAME
        made.write_bytes(_plain(made, provenance.of(ROOT).epoch or 0))
        key = hashlib.sha256(made.read_bytes()).hexdigest()
        there = wheelhouse.finished(out, wheelhouse.SDIST_CELL, key)
        if there is not None:
            return there, False
        return wheelhouse.put(out, wheelhouse.SDIST_CELL, key, made, time.perf_counter() - started), True


def _plain(sdist: Path, epoch: int) -> bytes:
    """The same archive without data that differs between machines."""
    whole = io.BytesIO()
    with (
        tarfile.open(sdist) as before,
        gzip.GzipFile("", "wb", fileobj=whole, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.mode = 0o755 if member.isdir() else 0o644
            after.addfile(plain, before.extractfile(member) if member.isfile() else None)
    return whole.getvalue()


def main(arguments: list[str]) -> int:
    """Make the sdist."""
    parser = argparse.ArgumentParser(prog="python -m tools sdist", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder of finished files")
    options = parser.parse_args(arguments)
    try:
        record, new = make(options.out)
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{record.file}: {record.bytes} bytes, {'written' if new else 'there already'}")
    return 0
