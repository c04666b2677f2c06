"""How a build tells whoever waits for it how far it is; and ninja, run so that it can be watched."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_STEP = re.compile(r"\[(\d+)/(\d+)\]")  # what ninja writes before the command of a finished step


class Watch:
    """Somebody who watches a build; this one does not look. May be called from any thread."""

    def log(self, path: Path) -> None:
        """What is being done is written to this file, line by line."""

    def step(self, done: int, total: int) -> None:
        """So many of so many steps are done."""


UNWATCHED = Watch()


def run_ninja(command: Sequence[str], log_file: Path, environment: Mapping[str, str], watch: Watch) -> tuple[int, str]:
    """Runs ninja to its end and returns its status and all it said, which is in ``log_file`` as soon as it is said."""
    watch.log(log_file)
    with (
        log_file.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        ) as ninja,
    ):
        try:
            for line in ninja.stdout or ():
                log.write(line)
                log.flush()
                if match := _STEP.match(line):
                    watch.step(int(match[1]), int(match[2]))
        except BaseException:  # Ctrl-C among them: it must not go on writing into a folder that is removed
            ninja.kill()
            raise
    return ninja.returncode, log_file.read_text(encoding="utf-8")
