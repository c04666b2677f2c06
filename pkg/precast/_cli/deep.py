"""``precast doctor --deep``: every kernel loaded and its numbers checked, in children: none can end this process.

What is missing is built, as at a first use.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterable
from typing import Any

from precast._builder import python
from precast._builder.catalogue import Family
from precast._load import handover


def examine(kernels: Iterable[tuple[Family, str]]) -> list[dict[str, Any]]:
    """One object per op and device: whether it computed the right numbers, and what it did instead."""
    waiting = [f"{handover.op_name(schema)}@{device}" for family, device in kernels for schema in family.ops]
    found: dict[str, str | None] = {}
    while waiting:  # ends: every child answers for at least one of them, if only by dying of it
        found |= _ask(waiting)
        waiting = [pair for pair in waiting if pair not in found]
    return [
        {"op": pair.partition("@")[0], "device": pair.partition("@")[2], "ok": wrong is None, "wrong": wrong}
        for pair, wrong in found.items()
    ]


def _ask(pairs: list[str]) -> dict[str, str | None]:
    """What one child finds before it ends, however it ends."""
    command = python.command("precast._cli.numbers", *pairs)
    # Its stderr is for the user.
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
