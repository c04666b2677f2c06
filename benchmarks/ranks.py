"""Eight ranks that start cold compared with one: from a barrier after ``import torch`` until the last has its kernel.

While one rank builds, the others sleep and check every 50 ms whether it is done (``_builder/lock.py``). If all share
few CPUs, eight cost as much as one, plus the processor time that each of the others uses itself: the second row. A
build takes seconds, and the drift of a machine between two builds is larger than that. So each round compares its own
two, and the median of the ratios is reported.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.child import environment, prebuilt_installation
from benchmarks.report import Report, Row

ROUNDS = 7
RANKS = 8

# Each rank reports that it has torch, waits for the start signal, and reports how long its kernel took. They share the
# barrier's clock: CLOCK_MONOTONIC is the same for all processes of a machine.
RANK = """
import sys, time
import torch
torch.set_num_threads(1)
print("ready", flush=True)
start, spent = float(sys.stdin.readline()), time.process_time()
import precast
kind = precast.load("adam_", "cpu").host.kind
print(time.monotonic() - start, time.process_time() - spent, kind, flush=True)
"""


def cold(ranks: int, cache: Path) -> dict[str, float]:
    """The time until the slowest rank has loaded, and the highest processor time among ranks that built nothing."""
    target = prebuilt_installation()
    env = environment(PYTHONPATH=str(target), PRECAST_JIT="jit", PRECAST_CACHE_DIR=str(cache), OMP_NUM_THREADS="1")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RANK], env=env, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True
        )
        for _ in range(ranks)
    ]
    for child in children:
        if child.stdout is None or child.stdout.readline() != "ready\n":
            raise SystemExit("benchmark: a rank could not import torch")
    start = time.monotonic()
    for child in children:
        if child.stdin is not None:
            child.stdin.write(f"{start}\n")
            child.stdin.flush()
    answers = [child.communicate()[0].split() for child in children]
    kinds = sorted(kind for _, _, kind in answers)
    if kinds != ["cache"] * (ranks - 1) + ["jit"]:
        raise SystemExit(f"benchmark: {ranks} cold ranks loaded from {kinds}; needed one build")
    return {
        "seconds": max(float(seconds) for seconds, _, _ in answers),
        "waiter": max((float(spent) for _, spent, kind in answers if kind == "cache"), default=0.0),
    }


def summary(one: list[dict[str, float]], many: list[dict[str, float]]) -> tuple[Row, Row]:
    """The two rows, from rounds in the order in which they were measured."""
    alone, all_of_them = ([sample["seconds"] for sample in samples] for samples in (one, many))
    ratio = Row(
        f"{RANKS} ranks cold, {os.cpu_count()} CPUs",
        statistics.median(all_of_them),
        "s",
        "one rank cold",
        statistics.median(alone),
        target=">= 0.67 (at most 1.5 times one rank)",
        paired=statistics.median(mine / theirs for mine, theirs in zip(alone, all_of_them, strict=True)),
    )
    spent = statistics.median(sample["waiter"] for sample in many) * 1e3
    return ratio, Row("processor time of a rank that waits and loads", spent, "ms")


def main() -> Report:
    """Alternate one and many ranks, each with an empty cache that has only the headers."""
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as name:
        count = iter(range(1000))
        rounds: dict[str, list[dict[str, float]]] = {"one": [], "many": []}

        def one(ranks: int) -> dict[str, float]:
            return cold(ranks, Path(name) / f"cache{next(count)}")

        one(1)  # brings headers, compiler and torch into the page cache
        for _ in range(ROUNDS):
            rounds["one"].append(one(1))
            rounds["many"].append(one(RANKS))
    return Report("ranks", "Ranks that start cold: one builds, the others wait and load", summary(**rounds))
