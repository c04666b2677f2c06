"""How verbs print: aligned columns, sizes, times, JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns, each as wide as its longest cell; the last one as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def print_json(value: Any) -> None:
    """One JSON value, indented."""
    print(json.dumps(value, indent=2))


def size(count: int) -> str:
    """``1.5 MB``; whole bytes below a kilobyte."""
    if count < 1000:
        return f"{count} B"
    amount, unit = count / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}"


def when(seconds: float) -> str:
    """A time of day in UTC, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
