"""What a person sees of a build at run time.

Nothing for what the cache has. A line when it is done, for every build. And for one that takes more than a second what
is built, why, how far it is and where its log is: on a terminal as a line that is kept up to date (by rich, if it is
there), elsewhere as one line.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import re
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol, TextIO, final

from precast._build.cache import Artifact
from precast._build.watch import Watch

_log = logging.getLogger("precast")
PATIENCE_S = 1.0
_REFRESH_S = 0.2
_SHORT = 40  # columns, for how far it is
_STEP = re.compile(r"^\[(\d+)/(\d+)\]", re.MULTILINE)


class Display(Protocol):
    """A place for a line that changes."""

    def show(self, text: str, done: int, total: int) -> None:
        """Replaces what was shown."""

    def close(self) -> None:
        """Leaves nothing of it behind."""


@final
class Progress(Watch):
    """One build and whoever waits for it. ``start`` when it is known that something has to be built; ``end`` after."""

    def __init__(self, what: str, with_what: str, why: str, stream: TextIO | None = None) -> None:
        self._what, self._with, self._why = what, with_what, why
        given: TextIO | None = sys.stderr if stream is None else stream
        self._stream = io.StringIO() if given is None or given.closed else given  # closed: nobody watches
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None
        self._log_file: Path | None = None
        self._steps = (0, 0)
        self._started = 0.0
        self._told = False

    def start(self) -> None:
        """From now on a second is counted; again is a no-op."""
        with self._lock:
            if self._ticker is None:
                _log.info("building %s with %s, because %s", self._what, self._with, self._why)
                self._started = time.monotonic()
                self._ticker = threading.Thread(target=self._tick, name="precast-progress", daemon=True)
                self._ticker.start()

    def log(self, path: Path) -> None:
        """The log to name; of several, the first."""
        with self._lock:
            self._log_file = self._log_file or path

    def step(self, done: int, total: int) -> None:
        """How far it is; an older count that comes late is not taken."""
        with self._lock:
            self._steps = max(self._steps, (done, total))

    def _read_log(self) -> None:
        """The last step in ninja's log; each finished one is a line such as ``[3/9] g++ ...``."""
        if self._log_file is None:
            return
        try:
            found = _STEP.findall(self._log_file.read_text(encoding="utf-8", errors="replace"))
        except OSError:  # not begun, or already where a finished build is kept
            return
        if found:
            self.step(int(found[-1][0]), int(found[-1][1]))

    def end(self, *artifacts: Artifact) -> None:
        """Says what was built, or logs that the cache had it."""
        self._stop()
        built = [artifact for artifact in artifacts if not artifact.cached]
        if not built:
            _log.info("%s comes from the build cache (%s)", self._what, self._why)
            return
        seconds = max(artifact.seconds for artifact in built)
        told = "" if self._told else f" ({self._why})"
        self._say(f"built {self._what}{'' if self._told else f' with {self._with}'} in {seconds:.1f} s{told}")
        _log.info("built %s in %.2f s with %s, because %s", self._what, seconds, self._with, self._why)

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
        if not self._stream.isatty():
            self._say(f"building {self._what} with {self._with} ({self._why}){self._so_far()}{self._where()}")
            self._told = True
            return
        try:
            self._show(open_display(self._stream))
        except OSError as error:
            _log.info("how far %s is cannot be shown: %s", self._what, error)

    def _show(self, display: Display) -> None:
        """Keeps a line up to date until the build is over."""
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
        """At once, whether or not logging is configured: whoever waits wants to know for what."""
        try:
            self._stream.write(f"precast: {line}\n")
            self._stream.flush()
        except (OSError, ValueError) as error:  # full, or closed: nobody watches, and the build goes on
            _log.info("%s (standard error does not take it: %s)", line, error)


def open_display(stream: TextIO) -> Display:
    """The best line that can be had on this terminal."""
    return RichDisplay(stream) if importlib.util.find_spec("rich") is not None else PlainDisplay(stream)


class PlainDisplay:
    """The whole text once, as a line of its own, and below it a short one that a carriage return takes back."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic() - PATIENCE_S
        self._text = ""

    def show(self, text: str, done: int, total: int) -> None:
        """Only how far it is changes; what has been read stays."""
        if text != self._text:
            self._text = text
            self._stream.write(f"\rprecast: {text}\n")
        count = f"{done} of {total} steps, " if total else ""
        self._stream.write(f"\r{f'precast: {count}{time.monotonic() - self._started:.0f} s':<{_SHORT}}")
        self._stream.flush()

    def close(self) -> None:
        """Blanks the short line."""
        self._stream.write("\r" + " " * _SHORT + "\r")
        self._stream.flush()


class RichDisplay:
    """A bar and the time, and the whole text under them, as many lines as it takes."""

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
        """Rich draws it again by itself."""
        from rich.console import Group
        from rich.text import Text

        self._bars.update(self._task, completed=done, total=total or None)
        self._live.update(Group(self._bars, Text(text)), refresh=True)

    def close(self) -> None:
        """Takes it off the screen."""
        self._live.stop()
