"""A cache of 10,000 entries compared with one entry. Nothing may become slower, because nothing is ever listed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from benchmarks.child import environment, prebuilt_installation, run
from benchmarks.report import Report, Row, interleaved

ROUNDS = 9
ENTRIES = 10_000

IMPORT = """
import time
start = time.perf_counter()
import precast
print(time.perf_counter() - start)
"""

LOAD = """
import time
import torch
start = time.perf_counter()
import precast
kind = precast.load("adam_", "cpu").host.kind
seconds = time.perf_counter() - start
assert kind == "cache", kind
print(seconds)
"""

BUILD = "import torch, precast; print(precast.load('adam_', 'cpu').host.kind)"


def fill(cache: Path, entries: int) -> None:
    """Copies the one finished entry under other names, into its own folder and as objects."""
    (entry,) = (cache / "v1" / "cpu_adam").iterdir()
    meta = (entry / "meta.json").read_bytes()
    for index in range(entries):
        folder = cache / "v1" / ("cpu_adam" if index % 2 else "objects") / f"{index:016x}"
        folder.mkdir()
        (folder / "meta.json").write_bytes(meta)
        (folder / "cpu_adam.so").write_bytes(b"")


def main() -> Report:
    """Alternate fresh processes on both caches. The ratio is the median over the rounds."""
    target = prebuilt_installation()
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as name:
        small, big = Path(name) / "small", Path(name) / "big"
        envs = {
            cache: environment(PYTHONPATH=str(target), PRECAST_JIT="jit", PRECAST_CACHE_DIR=str(cache))
            for cache in (small, big)
        }
        run(BUILD, env=envs[small])
        shutil.copytree(small, big)
        big.chmod(0o700)
        fill(big, ENTRIES)
        rows = []
        for what, code in (("import precast", IMPORT), ("load of a kernel built before", LOAD)):

            def seconds(cache: Path, code: str = code) -> float:
                return float(run(code, env=envs[cache]))

            samples = interleaved({"big": lambda: seconds(big), "small": lambda: seconds(small)}, ROUNDS)
            ratios = sorted(few / many for many, few in zip(samples["big"], samples["small"], strict=True))
            medians = {name: sorted(values)[ROUNDS // 2] * 1e3 for name, values in samples.items()}
            rows.append(
                Row(
                    f"{what}, {ENTRIES:,} entries",
                    medians["big"],
                    "ms",
                    "one entry",
                    medians["small"],
                    target=">= 0.9",
                    paired=ratios[ROUNDS // 2],
                )
            )
    return Report("big_cache", "A cache with many entries", tuple(rows))
