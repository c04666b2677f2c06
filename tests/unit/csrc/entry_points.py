"""The list of a family's entry points, as the tests read it: ``entries.h`` in the folder of the family.

Its macros are expanded here, because the register budgets are of no use to a compiler.
"""

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
    """A kernel, and the registers that a thread of it may take: ``registers``, or ``on_major`` from a major on."""

    name: str
    registers: int
    on_major: tuple[int, int] | None = None

    def budget(self, major: int) -> int:
        """The most registers of a thread on GPUs of a major compute capability."""
        return self.on_major[1] if self.on_major is not None and major >= self.on_major[0] else self.registers


def list_name(family: Family) -> str:
    """The macro that has the list of a family."""
    return f"{family.name.upper()}_KERNELS"


def macros(*texts: str) -> dict[str, tuple[list[str], str]]:
    """The macros with arguments in these sources: the names of the arguments, and the replacement."""
    found = re.findall(r"^#define (\w+)\(([^)]*)\)((?:.*\\\n)*.*)", "\n".join(texts), re.MULTILINE)
    return {name: (re.split(r",\s*", names), re.sub(r"[\\\s]+", " ", body).strip()) for name, names, body in found}


def expanded(text: str, known: dict[str, tuple[list[str], str]]) -> str:
    """A text after the preprocessor, for macros with arguments alone."""
    at = 0
    while call := re.compile(rf"\b({'|'.join(known)})\(").search(text, at):
        end, given = call.end(), [""]
        depth = 1
        while depth:
            depth += (text[end] == "(") - (text[end] == ")")
            if depth == 1 and text[end] == ",":
                given.append("")
            elif depth:
                given[-1] += text[end]
            end += 1
        names, body = known[call[1]]
        if names[-1] == "...":
            given[len(names) - 1 :] = [",".join(given[len(names) - 1 :])]
        values = {"__VA_ARGS__" if name == "..." else name: one.strip() for name, one in zip(names, given, strict=True)}
        body = re.sub(r"\b\w+\b", lambda word: values.get(word[0], word[0]), body).replace("##", "")  # noqa: B023
        text = text[: call.start()] + body + text[end:]
        at = call.start()
    return text


def read_list(text: str, macro: str) -> tuple[EntryPoint, ...]:
    """The rows of a list; ValueError if a row has other columns, or a name stands twice."""
    known = macros((CSRC / "gpu" / "dtypes.h").read_text(), text)
    flat = " ".join(expanded(f"{macro}(KERNEL)", known).split())
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
