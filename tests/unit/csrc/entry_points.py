"""The list of a family's entry points, as the tests read it: ``entries.h`` in the folder of the family."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from precast._builder.catalogue import Family

CSRC = Path(__file__).parents[3] / "csrc"
# name, Args, threads, resident, registers, shared, function: the columns of csrc/gpu/entry_points.h.
ROW = re.compile(r"KERNEL\((\w+), \w+, \w+, \w+, (?:(\d+)|BY_MAJOR\((\d+), (\d+), (\d+)\)), \w+, [^()]+\)")


@dataclass(frozen=True)
class EntryPoint:
    """A kernel, and the registers that a thread of it may take: ``registers``, or ``on_major`` where that is given."""

    name: str
    registers: int
    on_major: tuple[int, int] | None = None

    def budget(self, major: int) -> int:
        """The most registers of a thread on GPUs of a major compute capability."""
        return self.on_major[1] if self.on_major is not None and self.on_major[0] == major else self.registers


def list_name(family: Family) -> str:
    """The macro that has the list of a family."""
    return f"{family.name.upper()}_KERNELS"


def read_list(text: str, macro: str) -> tuple[EntryPoint, ...]:
    """The rows of a list; ValueError if a row has other columns, or a name stands twice."""
    (body,) = re.findall(rf"^#define {macro}\(KERNEL\)((?:.*\\\n)*.*)", text, re.MULTILINE)
    flat = re.sub(r"[\\\s]+", " ", body).strip()
    rows = list(ROW.finditer(flat))
    if " ".join(row[0] for row in rows) != flat:
        raise ValueError(f"{macro} has a row with other columns than those of gpu/entry_points.h")
    points = tuple(
        EntryPoint(name, int(registers)) if registers else EntryPoint(name, int(usual), (int(major), int(there)))
        for name, registers, usual, major, there in (row.groups() for row in rows)
    )
    if len({point.name for point in points}) < len(points):
        raise ValueError(f"{macro} names an entry point twice")
    return points


def entry_points(family: Family, csrc: Path = CSRC) -> tuple[EntryPoint, ...]:
    """The entry points of a family with device code, in the order of the list."""
    assert family.device is not None
    return read_list((csrc / family.device).with_name("entries.h").read_text(), list_name(family))
