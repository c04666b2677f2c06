"""Output of the verbs: tables, sizes, times and JSON. Any failure to write to standard output is one error."""

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

ERRORS = "precast.names"  # the encoding error handler for text that may contain file names


class CannotPrint(Exception):
    """Standard output cannot be written; the text is the system's reason."""


class ReaderGone(CannotPrint):
    """The reader of the pipe has exited."""


def open_streams() -> None:
    """Open closed descriptors below 3 on the null device, so that no other file gets the number and the output.

    Raise CannotPrint if standard output is closed, because the answer could not be shown.
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
    with _explaining():
        print(*lines, sep="\n")


def flush() -> None:
    """Flush standard output."""
    if sys.stdout is not None:
        with _explaining():
            sys.stdout.flush()


def complain(text: str) -> None:
    """Print to standard error. If it is closed or full, the exit status must be enough."""
    with contextlib.suppress(OSError):
        print(f"precast: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Python would flush the rest of the buffer at exit, fail again and report it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        kind = ReaderGone if isinstance(error, BrokenPipeError) else CannotPrint
        raise kind(error.strerror or str(error)) from error


def _encode_name(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write undecodable bytes of a file name unchanged; escape characters that the encoding does not have."""
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
    """Align rows in columns; the last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def print_json(value: Any) -> None:
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
    """``1 build``, ``2 builds``; ``many`` is an irregular plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def when(seconds: float) -> str:
    """Date and time in UTC, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
