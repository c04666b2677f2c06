"""The mutants that behave as the original does, as recorded by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.mutation.mutants import Mutant

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Equivalent:
    """One entry: the lines that change and what they become, without indentation, and why nothing is different.

    ``file`` is a pattern: one entry may speak of a line that many files have.
    """

    file: str
    line: str
    to: str
    reason: str

    def is_of(self, mutant: Mutant) -> bool:
        """Return whether a mutant is the one that is meant."""
        return (mutant.before, mutant.after) == (self.line, self.to) and fnmatch(mutant.file, self.file)


def read(path: Path) -> list[Equivalent]:
    """Return the entries of a file."""
    return [Equivalent(**entry) for entry in tomllib.loads(path.read_text()).get("equivalent", [])]


def stale(entries: Iterable[Equivalent], sources: Mapping[str, str]) -> list[Equivalent]:
    """Return the entries whose lines are in none of their files."""
    texts = {file: [line.strip() for line in source.splitlines()] for file, source in sources.items()}
    return [
        entry
        for entry in entries
        if not any(
            lines[start : start + entry.line.count("\n") + 1] == entry.line.splitlines()
            for file, lines in texts.items()
            for start in range(len(lines))
            if fnmatch(file, entry.file)
        )
    ]
