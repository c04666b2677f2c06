"""Rows of text as columns, for every table that a verb prints."""

from __future__ import annotations

from collections.abc import Iterable


def columns(rows: Iterable[tuple[str, ...]]) -> str:
    """The rows as aligned columns, without trailing spaces."""
    listed = list(rows)
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in listed
    )
