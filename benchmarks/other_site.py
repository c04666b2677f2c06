"""Another installation of precast beside the one that is measured, in a process of its own.

``python -m benchmarks.shapes --device cpu --beside SITE`` compares two commits in one run. The process is asked for one
turn at a time, so that both installations and all peers take turns. It waits before it answers, until the threads of
its pool sleep, and so does the caller before it asks: two pools that spin would slow each other down. Each turn starts
with calls that do not count, because threads that wake up may share a core for some milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.shapes_cases import OURS, Case

BESIDE = "precast beside"
QUIET_S = 0.004  # longer than a waiting thread of the pool spins


class OtherSite:
    """The process, which computes one case at a time."""

    def __init__(self, site: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.other_site", str(site.resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: Any) -> Any:
        """The answer of ``serve`` to a question."""
        assert self._process.stdin is not None and self._process.stdout is not None
        time.sleep(QUIET_S)
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def open(self, case: Case) -> OtherCall:
        """Prepare a case in the process."""
        self.ask(case=asdict(case))
        return OtherCall(self)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class OtherCall:
    """A call of the case that the process has open."""

    def __init__(self, site: OtherSite) -> None:
        self._site = site

    def turn_us(self, repeats: int, *, calls: int = 1, cold: bool = False) -> list[float]:
        """As ``host_turns.turn_us`` in the process."""
        found: list[float] = self._site.ask(repeats=repeats, calls=calls, cold=cold)
        return found


def serve(site: Path) -> None:
    """Answer questions from standard input until it ends."""
    child.use_installation(site)
    from benchmarks import host_turns, shapes_cases

    call: Any = None
    for line in sys.stdin:
        question = json.loads(line)
        answer: list[float] = []
        if "case" in question:
            case = Case(**{**question["case"], "shape": tuple(question["case"]["shape"])})
            given = shapes_cases.buffers(case, 1, "cpu")
            call = shapes_cases.call_of(shapes_cases.functions(case, "cpu")[0][OURS], given, 0)
        else:
            answer = host_turns.turn_us(call, question["repeats"], calls=question["calls"], cold=question["cold"])
        time.sleep(QUIET_S)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
