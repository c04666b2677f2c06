"""``precast report``: one text to paste into an issue, without the home folder and without passwords in URLs."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._builder import cache_tools, failure
from precast._builder.cache import LAYOUT, default_root
from precast._cli import doctor, output, status
from precast._load import probe
from precast.core import files

if TYPE_CHECKING:
    from precast._cli.names import Verbs

_PACKAGES = re.compile(r"precast|torch|torchvision|triton|numpy|ninja|setuptools|nvidia[-_].*", re.IGNORECASE)
_LOGS, _LOG_BYTES = 3, 64 << 20
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("report", help="print the facts for a bug report, without passwords; sends nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report to a new file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    facts = redacted(gather(), os.environ.get("HOME"))
    text = json.dumps(facts, indent=2) if options.json else to_text(facts)
    if options.out is None:
        output.say(text)
        return status.GOOD
    try:
        with options.out.open("x", encoding="utf-8", errors=output.ERRORS) as file:
            file.write(text + "\n")
    except OSError as error:
        output.complain(f"{options.out}: {error.strerror}; name a file that can be made")
        return status.FAILED
    output.say(options.out)
    return status.GOOD


def gather() -> dict[str, Any]:
    """The doctor's facts, the settings, the relevant packages, the cache, and the latest build failures."""
    root = default_root(probe.read_settings())
    entries = cache_tools.read_entries(root)
    examined = doctor.examine()
    return {
        "schema": 1,
        "doctor": examined,
        "variables": examined["variables"],
        "python": f"{sys.version.split()[0]} ({sys.executable})",
        "packages": dict(sorted(_packages().items())),
        "cache": {
            "root": str(root),
            "entries": len(entries),
            "bytes": sum(entry.bytes for entry in entries),
            "damaged": [f"{entry.label}: {entry.problem}" for entry in entries if entry.problem],
        },
        "failures": _failures(root),
    }


def to_text(facts: dict[str, Any]) -> str:
    """The same as readable text. It does not repeat the doctor's lines about the cache."""
    lines = [doctor.to_text(facts["doctor"], verbose=True), "", f"python    {facts['python']}", "packages"]
    lines += [f"  {name} {version}" for name, version in facts["packages"].items()]
    lines += [f"damaged   {line}" for line in facts["cache"]["damaged"]]
    for failed in facts["failures"]:
        lines += [f"failed    {failed['log']}", f"  {failed['error']}"]
    return "\n".join(lines)


def redacted(value: Any, home: str | None) -> Any:
    """The value with the home folder written as ``~``, and without user names and passwords in URLs."""
    if isinstance(value, dict):
        return {redacted(key, home): redacted(item, home) for key, item in value.items()}
    if isinstance(value, list):
        return [redacted(item, home) for item in value]
    if not isinstance(value, str):
        return value
    text = _PASSWORD.sub("***@", value)
    home = (home or "").rstrip("/")
    return re.sub(rf"{re.escape(home)}(?=/|$|[\s:;,'\")])", "~", text) if home else text


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and _PACKAGES.fullmatch(name):
            found.setdefault(name, distribution.version)  # Python imports the first one on the path
    return found


def _failures(root: Path) -> list[dict[str, str]]:
    """The first error of each of the latest failed builds."""
    logs = sorted((root / LAYOUT / ".failed").glob("*.log"), key=lambda log: log.lstat().st_mtime, reverse=True)
    return [{"log": str(log), "error": _first_error(log)} for log in logs[:_LOGS]]


def _first_error(log: Path) -> str:
    try:
        text = files.read(log, _LOG_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return f"the log cannot be read: {error.strerror}"
    return failure.first_error(text.partition("\n")[2])
