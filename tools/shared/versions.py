"""The documentation of every release, each below its version, with ``latest`` and the list for the switch.

The layout is that of mike, which the theme knows. mike itself keeps pages on a git branch, and a job that installs
packages would have to be allowed to write it. Here the pages of a version are also an archive, which the next release
carries over byte for byte, like a wheel.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from precast.errors import KernelError

LIST = "versions.json"
LATEST = "latest"
_START = '<!doctype html><title>precast</title><meta http-equiv="refresh" content="0; url=latest/index.html">\n'

Json = dict[str, Any]


def assemble(built: Path, out: Path, version: str, previous: Path) -> list[str]:
    """Write ``out``: the pages of this version and of all in ``previous``; return the versions, newest first.

    A version that was published keeps its pages. KernelError if an archive is missing or differs from the list; then
    nothing is written.
    """
    kept = read(previous)
    if out.exists():
        raise KernelError(f"{out} is there already: it may hold pages of another version")
    for known, digest in kept.items():
        _verified(previous / archive(known), digest)
    for known in kept:
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(previous / archive(known), out / archive(known))
        with zipfile.ZipFile(out / archive(known)) as pages:
            pages.extractall(out / known)
    if version not in kept:
        shutil.copytree(built, out / version)
        shutil.make_archive(str(out / version), "zip", out / version)
    versions = sorted({*kept, version}, key=Version, reverse=True)
    latest = next((known for known in versions if not Version(known).is_prerelease), versions[0])
    shutil.copytree(out / latest, out / LATEST)
    entries = [
        {
            "version": known,
            "title": known,
            "aliases": [LATEST] if known == latest else [],
            "properties": {"sha256": hashlib.sha256((out / archive(known)).read_bytes()).hexdigest()},
        }
        for known in versions
    ]
    (out / LIST).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (out / "index.html").write_text(_START, encoding="utf-8")
    return versions


def archive(version: str) -> str:
    """The file name of a version's pages."""
    return f"{version}.zip"


def read(folder: Path) -> dict[str, str]:
    """Version -> sha256 of its archive, of the published documentation."""
    path = folder / LIST
    try:
        entries: list[Json] = json.loads(path.read_text(encoding="utf-8"))
        found = {str(entry["version"]): str(entry["properties"]["sha256"]) for entry in entries}
        strange = [version for version in found if str(Version(version)) != version]
    except (OSError, ValueError, TypeError, KeyError, InvalidVersion) as error:
        raise KernelError(f"{path}: not the list of a documentation: {error!r}") from error
    if strange:
        raise KernelError(f"{path}: not the list of a documentation: its version {strange[0]!r} is not one")
    return found


def _verified(path: Path, digest: str) -> None:
    if not path.is_file():
        raise KernelError(f"{path}: removed after publication; {LIST} lists it")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise KernelError(f"{path}: changed after publication: {LIST} says sha256 {digest}, its bytes are {found}")
