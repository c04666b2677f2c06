"""The interface through which a build reports its progress."""

from __future__ import annotations

from pathlib import Path


class Watch:
    """Receives the progress of a build; this base class ignores it. Methods may be called from any thread."""

    def log(self, path: Path) -> None:
        """Ninja writes its output to this file while it runs."""

    def step(self, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` steps are finished, for builds without a log file."""


UNWATCHED = Watch()
