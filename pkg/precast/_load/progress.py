"""Show the progress of a build at run time.

A cache hit shows nothing. A finished build gives one message. A build that takes more than a second also says what is
being built, why, and where its log is: on a terminal as a line that is kept up to date (by rich, if installed),
elsewhere as one message. Messages go through :mod:`precast._load.messages`, so each appears once.
"""

from __future__ import annotations

import importlib.util
import io
import re
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol, TextIO, final

from precast._builder.cache import Artifact
from precast._builder.watch import Watch
from precast._load import messages

PATIENCE_S = 1.0
_REFRESH_S = 0.2
_SHORT = 40  # columns, for the progress count
_STEP = re.compile(r"^\[(\d+)/(\d+)\]", re.MULTILINE)


class Display(Protocol):
    """A line that changes."""

    def show(self, text: str, done: int, total: int) -> None:
        """Replaces the text that was shown before."""

    def close(self) -> None:
        """Removes the line."""


@final
class Progress(Watch):
    """One build. Call ``start`` once it is known that something must be built, and ``end`` afterwards.

    ``quiet``: no progress line, and no message unless an application handles it.
    """

    def __init__(
        self, what: str, with_what: str, why: str, stream: TextIO | None = None, *, quiet: bool = False
    ) -> None:
        self._what, self._with, self._why, self._quiet = what, with_what, why, quiet
        given: TextIO | None = sys.stderr if stream is None else stream
        self._stream = io.StringIO() if given is None or given.closed else given  # nobody reads a closed stream
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None
        self._log_file: Path | None = None
        self._steps = (0, 0)
        self._started = 0.0
        self._told = False

    def start(self) -> None:
        """Start counting the time; a second call is a no-op."""
        with self._lock:
            if self._ticker is None:
                self._started = time.monotonic()
                self._ticker = threading.Thread(target=self._tick, name="precast-progress", daemon=True)
                self._ticker.start()

    def log(self, path: Path) -> None:
        """Name the log file; the first of several is kept."""
        with self._lock:
            self._log_file = self._log_file or path

    def step(self, done: int, total: int) -> None:
        """Report the progress; an older count that arrives late is ignored."""
        with self._lock:
            self._steps = max(self._steps, (done, total))

    def _read_log(self) -> None:
        """Read the last step in ninja's log. Each finished step is a line such as ``[3/9] g++ ...``."""
        if self._log_file is None:
            return
        try:
            found = _STEP.findall(self._log_file.read_text(encoding="utf-8", errors="replace"))
        except OSError:  # the build has not begun, or has already moved to the cache
            return
        if found:
            self.step(int(found[-1][0]), int(found[-1][1]))

    def end(self, *artifacts: Artifact) -> None:
        """Report what was built; a cache hit is only logged at level INFO."""
        self._stop()
        built = [artifact for artifact in artifacts if not artifact.cached]
        if not built:
            messages.log.info("%s comes from the build cache (%s)", self._what, self._why)
            return
        seconds = max(artifact.seconds for artifact in built)
        told = "" if self._told else f" ({self._why})"
        self._say(f"built {self._what}{'' if self._told else f' with {self._with}'} in {seconds:.1f} s{told}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()

    def _tick(self) -> None:
        if self._over.wait(PATIENCE_S):
            return
        self._read_log()
        if self._quiet or not self._stream.isatty():
            self._say(f"building {self._what} with {self._with} ({self._why}){self._so_far()}{self._where()}")
            self._told = True
            return
        try:
            self._show(open_display(self._stream))
        except OSError as error:
            messages.log.info("how far %s is cannot be shown: %s", self._what, error)

    def _show(self, display: Display) -> None:
        try:
            while True:
                text = f"building {self._what} with {self._with} ({self._why}){self._where()}"
                display.show(text, *self._steps)
                if self._over.wait(_REFRESH_S):
                    return
                self._read_log()
        finally:
            display.close()

    def _so_far(self) -> str:
        done, total = self._steps
        seconds = time.monotonic() - self._started
        return f": {done} of {total} steps done after {seconds:.0f} s" if total else f": {seconds:.0f} s so far"

    def _where(self) -> str:
        return f"; log: {self._log_file}" if self._log_file else ""

    def _say(self, line: str) -> None:
        messages.tell("%s", line, quiet=self._quiet)


def open_display(stream: TextIO) -> Display:
    """The best display for this terminal."""
    return RichDisplay(stream) if importlib.util.find_spec("rich") is not None else PlainDisplay(stream)


class PlainDisplay:
    """Writes the text once, on its own line, and below it a short line that a carriage return overwrites."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic() - PATIENCE_S
        self._text = ""

    def show(self, text: str, done: int, total: int) -> None:
        """Update only the progress count, unless the text has changed."""
        if text != self._text:
            self._text = text
            self._stream.write(f"\rprecast: {text}\n")
        count = f"{done} of {total} steps, " if total else ""
        self._stream.write(f"\r{f'precast: {count}{time.monotonic() - self._started:.0f} s':<{_SHORT}}")
        self._stream.flush()

    def close(self) -> None:
        """Blank the short line."""
        self._stream.write("\r" + " " * _SHORT + "\r")
        self._stream.flush()


class RichDisplay:
    """A bar and the time, with the whole text below, on as many lines as it needs."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(TextColumn("precast"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bars.add_task("", total=None)
        self._live = Live(console=Console(file=stream), transient=True, redirect_stdout=False, redirect_stderr=False)
        self._live.start()

    def show(self, text: str, done: int, total: int) -> None:
        """Update the bar; rich redraws it by itself."""
        from rich.console import Group
        from rich.text import Text

        self._bars.update(self._task, completed=done, total=total or None)
        self._live.update(Group(self._bars, Text(text)), refresh=True)

    def close(self) -> None:
        """Remove the bar from the screen."""
        self._live.stop()
