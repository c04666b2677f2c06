"""The standard error for a failed compiler: its first error, its command, and the path of the whole log."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from precast._builder import trust
from precast._version import __version__
from precast.core import files
from precast.errors import BuildFailed

_ERROR = re.compile(
    r"^.*(?:\berror\b|\bundefined reference\b|\bmultiple definition\b|cannot find|No space left|out of memory"
    r"|allocate memory|\bKilled\b).*$",
    re.IGNORECASE | re.MULTILINE,
)


def first_error(log: str) -> str:
    """The first line that names an error, otherwise the last line."""
    match = _ERROR.search(log)
    lines = [line for line in log.splitlines() if line.strip()]
    return match[0].strip() if match else (lines[-1].strip() if lines else "no output at all")


def told(log: str) -> list[str]:
    """What an error shows of a log of which no file is kept: its first error and its last lines."""
    return [first_error(log), "its last lines:", *log.splitlines()[-30:]]


def build_failed(what: str, log: str, command: str, log_file: Path, *, tool: str) -> BuildFailed:
    """Keep the log at the path that the error names, and make the error; ``tool`` is the compiler with its version."""
    files.write_private(log_file, f"{command}\n\n{log}".encode("utf-8", "surrogateescape"))
    found = first_error(log)
    full = trust.another(log_file.parent) if "No space left" in found else ""
    return BuildFailed(
        f"{what}: {'the disk is full' if full else 'the compiler failed'}",
        found=found,
        needed=f"a clean run of: {command}",
        env=environment(tool),
        fix=full or f"read the whole log: {log_file}",
    )


def environment(tool: str) -> str:
    """The environment of a build, in one line. An AOT build imports no torch and is for none installed here."""
    torch = sys.modules.get("torch")
    parts = (
        f"precast {__version__}",
        tool,
        "no torch imported" if torch is None else f"torch {getattr(torch, '__version__', 'without a version')}",
        f"Python {platform.python_version()}",
        f"{platform.system()} {platform.machine()}",
        os.confstr("CS_GNU_LIBC_VERSION") or "no glibc",
    )
    return ", ".join(parts)
