"""docs/reference/parity.toml: what the older packages have, and what precast has in its place."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from precast.errors import KernelError

FILE = "docs/reference/parity.toml"
VERDICTS = ("same", "better", "different", "raises")
_NAME = re.compile(r"(?P<name>[\w.]+)(?:\((?P<arguments>[\w, ]*)\))?(?P<rest>\.load\(\))?")


@dataclass(frozen=True)
class Row:
    """One name of an older package, and its arguments by place; None if it is not called."""

    shown: str
    name: str
    arguments: tuple[str, ...] | None
    verdict: str
    note: str
    ours: str  # the name in precast; empty if the loaded object itself is called


@dataclass(frozen=True)
class Section:
    """Rows whose names are those of a module of precast, or of what a loader returns."""

    title: str
    module: str | None
    loader: str | None
    rows: tuple[Row, ...]


def read(path: Path) -> tuple[Section, ...]:
    """The sections. KernelError names a row that cannot be read."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["section"]
    return tuple(
        Section(one["title"], one.get("module"), one.get("loader"), tuple(map(_row, one["rows"]))) for one in found
    )


def _row(values: Sequence[str]) -> Row:
    shown, verdict, note, *ours = values
    match = _NAME.fullmatch(shown)
    if match is None or verdict not in VERDICTS or (verdict != "same" and not note):
        raise KernelError(
            f"{FILE} has the row {list(values)}",
            needed=f"name(arguments), one of {', '.join(VERDICTS)}, and how or why",
        )
    name, arguments = match["name"], match["arguments"]
    called = None if arguments is None or match["rest"] else tuple(filter(None, arguments.split(", ")))
    return Row(shown, name, called, verdict, note, ours[0] if ours else name)


def page(sections: Sequence[Section]) -> str:
    """The counts, the sections in which every call is unchanged, and for each other section what differs."""
    rows = [row for section in sections for row in section.rows]
    said = {"raises": "raise an error"}
    counts = ", ".join(f"{sum(row.verdict == one for row in rows)} {said.get(one, one)}" for one in VERDICTS)
    lines = [f"{len(rows)} names: {counts}. Every call is unchanged in (number of names):", ""]
    lines += [f"* {section.title} ({len(section.rows)})" for section in sections if not different(section)]
    for section in sections:
        if different(section):
            lines += ["", f"## {section.title}", *_section(section)]
    return "\n".join(lines) + "\n"


def different(section: Section) -> list[Row]:
    """The rows whose calls differ, or raise."""
    return [row for row in section.rows if row.verdict in ("different", "raises")]


def _section(section: Section) -> list[str]:
    count = len(section.rows) - len(different(section))
    lines = ["", f"Unchanged: {count} of {len(section.rows)} names."] if count else []
    lines += ["", "| Name | Difference |", "| --- | --- |"]
    alike: dict[str, list[str]] = {}
    for row in different(section):
        alike.setdefault(f"{'raises: ' * (row.verdict == 'raises')}{row.note}", []).append(f"`{row.name}`")
    return lines + [f"| {', '.join(names)} | {note} |" for note, names in alike.items()]
