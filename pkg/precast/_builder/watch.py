"""How a build tells whoever waits for it how far it is."""

from __future__ import annotations

from pathlib import Path


class Watch:
    """Somebody who watches a build; this one does not look. May be called from any thread."""

    def log(self, path: Path) -> None:
        """What ninja says is written to this file while it says it."""

    def step(self, done: int, total: int) -> None:
        """So many of so many steps are done, where there is no such file."""


UNWATCHED = Watch()
