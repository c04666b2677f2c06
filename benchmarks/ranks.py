"""Eight ranks that start cold against one: from a barrier after ``import torch`` until the last has its kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.child import environment, prebuilt_installation
from benchmarks.report import Report, Row, interleaved_medians

ROUNDS = 3
RANKS = 8

# Each rank says that it has torch, waits for the word to go, and says how long its kernel took. The clock of the
# barrier is one for all: CLOCK_MONOTONIC counts alike in every process of a machine.
RANK = """
import sys, time
import torch
torch.set_num_threads(1)
print("ready", flush=True)
start = float(sys.stdin.readline())
import precast
kind = precast.load("adam_", "cpu").host.kind
print(time.monotonic() - start, kind, flush=True)
"""


def cold(ranks: int, cache: Path) -> float:
    """The seconds until the slowest of so many ranks has loaded; one of them has built, and one only."""
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
    kinds = sorted(kind for _, kind in answers)
    if kinds != ["cache"] * (ranks - 1) + ["jit"]:
        raise SystemExit(f"benchmark: {ranks} cold ranks loaded from {kinds}; wanted one build")
    return max(float(seconds) for seconds, _ in answers)


def main() -> Report:
    """In turns, each with an empty cache that has the headers alone."""
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as name:
        count = iter(range(1000))

        def one(ranks: int) -> float:
            return cold(ranks, Path(name) / f"cache{next(count)}")

        one(1)  # the headers, the compiler and torch into the page cache
        medians = interleaved_medians({"many": lambda: one(RANKS), "one": lambda: one(1)}, ROUNDS)
    row = Row(
        f"{RANKS} ranks cold, {os.cpu_count()} CPUs",
        medians["many"],
        "s",
        "one rank cold",
        medians["one"],
        target=">= 0.67 (at most 1.5 times one rank)",
    )
    return Report("ranks", "Ranks that start cold: one builds, the others wait and load", (row,))
