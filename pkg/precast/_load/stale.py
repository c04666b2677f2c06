"""Explain prebuilt files that were not made from the installed code."""

from __future__ import annotations

import re
from pathlib import Path

from precast._builder import sources
from precast._version import __version__
from precast.core import files
from precast.core.manifest import BuildInfo
from precast.core.reasons import Reason, Rejection
from precast.errors import KernelError

_PACKAGE = Path(__file__).resolve().parents[1]
_SMALL = 10_000  # bytes; for a file with one line
_SHOWN = 12  # digits of a digest in a message


def sources_on_disk() -> str | None:
    """The current digest of the sources: the one that a wheel states, otherwise computed from the files."""
    try:
        csrc = sources.csrc_dir()
    except KernelError:
        return None
    try:
        return files.read(csrc / files.DIGEST, _SMALL).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return sources.source_digest(csrc)


def describe(info: BuildInfo, here: str | None) -> Rejection:
    """Describe prebuilt files of another version, or of sources other than ``here``, those of this process.

    It is passing where they were made from the code that is installed now, and this process began with older code.
    """
    if info.version != __version__:
        needed, found = f"files of precast {__version__}", f"those of precast {info.version}"
    else:
        needed, found = f"files of the sources {(here or '')[:_SHOWN]}", f"those of {info.source_digest[:_SHOWN]}"
    if info.version == _version_on_disk() and sources_on_disk() in {info.source_digest, None}:
        return Rejection(Reason.STALE, needed, f"{found}: precast was upgraded while this process ran", passing=True)
    return Rejection(Reason.STALE, needed, found)


def _version_on_disk() -> str | None:
    """The version that the installed files have now; this process keeps the version it started with."""
    try:
        text = files.read(_PACKAGE / "_version.py", _SMALL)
    except OSError:
        return None
    match = re.search(rb'^__version__ = "([^"]+)"', text, re.MULTILINE)
    return match[1].decode("ascii", "replace") if match else None
