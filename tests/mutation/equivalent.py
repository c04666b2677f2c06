"""The mutants that behave as the original does, as recorded by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Equivalent:
    """One entry: the lines that change and what they become, without indentation, and why nothing is different."""

    file: str
    line: str
    to: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What a mutant's own key is compared with."""
        return self.file, self.line, self.to


def read(path: Path) -> list[Equivalent]:
    """Return the entries of a file."""
    return [Equivalent(**entry) for entry in tomllib.loads(path.read_text()).get("equivalent", [])]


def stale(entries: Iterable[Equivalent], checkout: Path) -> list[Equivalent]:
    """Return the entries whose lines are not in their file."""
    found = []
    for entry in entries:
        path = checkout / entry.file
        lines = [line.strip() for line in path.read_text().splitlines()] if path.exists() else []
        wanted = entry.line.splitlines()
        if not any(lines[start : start + len(wanted)] == wanted for start in range(len(lines))):
            found.append(entry)
    return found
