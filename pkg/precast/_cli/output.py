"""How verbs print: what standard output does not take is one error; aligned columns, sizes, times, JSON."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from precast._abi.settings import Settings

Paint = Callable[[str, str], str]  # a text and the name of a colour, or "" for none

ERRORS = "precast.names"  # how a text is encoded that may hold the name of any file


class CannotPrint(Exception):
    """Standard output takes nothing; the text is the reason that the system gives."""


class ReaderGone(CannotPrint):
    """Whoever read the output has had enough."""


def open_streams() -> None:
    """Gives closed descriptors below 3 to the null device: the next file would get such a number, and what is printed.

    CannotPrint if standard output is closed: an answer was asked for that nobody can get.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # noqa: PERF203 - the lowest free number is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)  # argparse expects one
    if sys.stdout is None:
        raise CannotPrint("it is closed; send it to /dev/null to do without the answer")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ERRORS)


def say(*lines: object) -> None:
    """Prints lines."""
    with _explaining():
        print(*lines, sep="\n")


def flush() -> None:
    """Everything that was said is out."""
    if sys.stdout is not None:
        with _explaining():
            sys.stdout.flush()


def complain(text: str) -> None:
    """Prints to standard error; where that is closed or full, only the status is left to tell."""
    with contextlib.suppress(OSError):
        print(f"precast: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # What is left in the buffer would fail again, and be told by Python, when this process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        kind = ReaderGone if isinstance(error, BrokenPipeError) else CannotPrint
        raise kind(error.strerror or str(error)) from error


def _encode_name(error: UnicodeError) -> tuple[str | bytes, int]:
    """A byte of a file name that is no text goes out as it came in; a character that cannot be written is escaped."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    first = error.object[error.start]
    if "\udc80" <= first <= "\udcff":
        return bytes([ord(first) - 0xDC00]), error.start + 1
    return first.encode("ascii", "backslashreplace"), error.start + 1


codecs.register_error(ERRORS, _encode_name)


def plain(text: str, colour: str) -> str:
    """A :data:`Paint` without colours."""
    return text


def painter(settings: Settings) -> Paint:
    """Colours for a terminal, unless ``NO_COLOR`` is set (https://no-color.org)."""
    return _coloured if not settings.no_color and sys.stdout.isatty() else plain


def _coloured(text: str, colour: str) -> str:
    # "Select Graphic Rendition" of ECMA-48.
    codes = {"red": "31", "green": "32", "yellow": "33"}
    return f"\x1b[{codes[colour]}m{text}\x1b[0m" if colour in codes else text


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns, each as wide as its longest cell; the last one as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def print_json(value: Any) -> None:
    """One JSON value, indented."""
    say(json.dumps(value, indent=2))


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


def count(number: int, one: str, many: str = "") -> str:
    """``1 build``, ``2 builds``; ``many`` where an s is not enough."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def when(seconds: float) -> str:
    """A time of day in UTC, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
