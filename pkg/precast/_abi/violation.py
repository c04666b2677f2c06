"""A finding of the wheel audit, for our wheels and for others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One failed check: the check, the row, file or symbol, what was wanted and what was found."""

    check: str
    where: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: wanted {self.wanted}; found {self.found}"
