"""Medians over fresh processes: the memory placement of a process matters more than the contestants differ."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping

from benchmarks.child import CHECKOUT, environment, prebuilt_installation, run
from benchmarks.report import Row, interleaved, timed

PROCESSES = 3
OURS = "precast"

# Per case and contestant: the median of the seconds, and of the rounds' ratios to ours.
Found = dict[str, dict[str, tuple[float, float]]]

_CHILD = """
import importlib, json, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
print(json.dumps(importlib.import_module(sys.argv[3]).measure()))
"""


def compare(
    contestants: Mapping[str, Callable[[], object]], rounds: int, calls: int = 1
) -> dict[str, tuple[float, float]]:
    """Time the contestants in turns, after one warm-up call each. A ratio compares two times from one round."""
    for function in contestants.values():
        function()
    times = interleaved({name: timed(function, calls) for name, function in contestants.items()}, rounds)
    return {
        name: (
            statistics.median(seconds),
            statistics.median(theirs / ours for theirs, ours in zip(seconds, times[OURS], strict=True)),
        )
        for name, seconds in times.items()
    }


def medians(module: str, processes: int = PROCESSES) -> Found:
    """Run a module's ``measure()`` in several processes, one at a time: the median of each figure."""
    env = environment(PRECAST_JIT="aot")
    arguments = (str(prebuilt_installation()), str(CHECKOUT), module)
    found: list[Found] = [json.loads(run(_CHILD, *arguments, env=env)) for _ in range(processes)]
    return {
        what: {
            name: tuple(statistics.median(one[what][name][i] for one in found) for i in range(2))  # type: ignore[misc]
            for name in contestants
        }
        for what, contestants in found[0].items()
    }


def rows(found: Found, unit: str, targets: Mapping[tuple[str, str], str]) -> list[Row]:
    """One row per peer and case, with times in ``unit``, which is ms or us."""
    scale = {"ms": 1e3, "us": 1e6}[unit]
    return [
        Row(
            what,
            contestants[OURS][0] * scale,
            unit,
            peer,
            seconds * scale,
            target=targets.get((what, peer), ""),
            paired=ratio,
        )
        for what, contestants in found.items()
        for peer, (seconds, ratio) in contestants.items()
        if peer != OURS
    ]
