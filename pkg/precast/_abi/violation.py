"""What the audit of a wheel finds, of ours or of anybody's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not as it must be: the check, the row, file or symbol, what was wanted and what was found."""

    check: str
    where: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: wanted {self.wanted}; found {self.found}"
