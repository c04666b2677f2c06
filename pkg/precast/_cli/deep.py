"""``precast doctor --deep``: load every kernel and check its numbers.

This runs in child processes, so that a crash does not end this one. Missing kernels are built, as at their first use.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterable
from typing import Any

from precast._builder import python
from precast._builder.catalogue import Family


def examine(kernels: Iterable[tuple[Family, str]]) -> list[dict[str, Any]]:
    """One object per op and device: whether the numbers are right, and if not, what went wrong."""
    waiting = [f"{op}@{device}" for family, device in kernels for op in family.op_names]
    found: dict[str, str | None] = {}
    while waiting:  # ends: each child settles at least one pair, if only by crashing on it
        found |= _ask(waiting)
        waiting = [pair for pair in waiting if pair not in found]
    return [
        {"op": pair.partition("@")[0], "device": pair.partition("@")[2], "ok": wrong is None, "wrong": wrong}
        for pair, wrong in found.items()
    ]


def _ask(pairs: list[str]) -> dict[str, str | None]:
    """The results of one child process, even if it crashes."""
    command = python.command("precast._cli.numbers", *pairs)
    # The child's stderr goes to the user.
    done = subprocess.run(command, env=python.environment(), stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, str | None] = {}
    started = pairs[0]
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        started = answer["pair"]
        if "wrong" in answer:
            found[started] = answer["wrong"]
    if started not in found:
        found[started] = _end(done.returncode)
    elif done.returncode and len(found) == len(pairs):
        found[started] = found[started] or f"its process ended badly afterwards: {_end(done.returncode)}"
    return found


def _end(status: int) -> str:
    if status >= 0:
        return f"the process that ran it ended with status {status}; what it said is above"
    return f"the process that ran it was ended by {signal.Signals(-status).name}"
