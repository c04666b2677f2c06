"""Report a build at run time through :mod:`precast._load.messages`.

A cache hit shows nothing, and a finished build gives one message. A build that takes more than a second also says, as
soon as the second is over, what is being built, why, and where its log is.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import final

from precast._builder.cache import Artifact
from precast._load import messages

PATIENCE_S = 1.0


@final
class Progress:
    """One build. Call ``start`` once it is known that something must be built, and ``end`` afterwards.

    ``quiet``: no message unless an application handles it.
    """

    def __init__(self, what: str, with_what: str, why: str, *, quiet: bool) -> None:
        self._what, self._with, self._why, self._quiet = what, with_what, why, quiet
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._told = False

    def start(self, log: Path) -> None:
        """Start counting the time. ``log``: the file of the compiler's output; the first of several builds is named."""
        with self._lock:
            if self._timer is None:
                self._timer = threading.Timer(PATIENCE_S, self._tell_slow, (log,))
                self._timer.daemon = True
                self._timer.start()

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    def _tell_slow(self, log: Path) -> None:
        where = f"; log: {log}" if log.is_file() else ""  # NVRTC writes it at its end
        self._say(f"building {self._what} with {self._with} ({self._why}){where}")
        self._told = True

    def _say(self, line: str) -> None:
        messages.tell("%s", line, quiet=self._quiet)
