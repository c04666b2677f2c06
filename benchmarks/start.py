"""Startup times: importing precast, and the first call of a prebuilt kernel."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.child import environment, prebuilt_installation, run
from benchmarks.report import Report, Row, interleaved_medians

ROUNDS = 9

IMPORT = """
import time
start = time.perf_counter()
import precast
print(time.perf_counter() - start)
"""

FIRST_CALL = """
import json, time
import torch
x, weight = torch.ones(4, 64), torch.ones(64)
start = time.perf_counter()
import precast.ops
imported = time.perf_counter()
precast.ops.rms_norm(x, weight)
print(json.dumps([imported - start, time.perf_counter() - imported]))
"""


def main() -> Report:
    """Measure in fresh processes. The installation is a wheel built for this machine."""
    target = prebuilt_installation()
    with tempfile.TemporaryDirectory() as folder:
        unused = Path(folder) / "cache"
        env = environment(PYTHONPATH=str(target), PRECAST_CACHE_DIR=str(unused))
        imports: list[float] = []

        def first_call() -> float:
            importing, calling = json.loads(run(FIRST_CALL, env=env))
            imports.append(importing)
            return float(calling)

        medians = interleaved_medians(
            {
                "import": lambda: float(run(IMPORT, env=env)),
                "call": first_call,
            },
            ROUNDS,
        )
        if unused.exists():
            raise SystemExit("benchmark: the prebuilt installation built something at run time; nothing was measured")
    importing = sorted(imports)[len(imports) // 2]
    rows = (
        Row("import precast", medians["import"] * 1e3, "ms", target="< 30"),
        Row("import precast.ops, after torch", importing * 1e3, "ms"),
        Row("first call, prebuilt", medians["call"] * 1e3, "ms"),
        Row("both, after import torch", (importing + medians["call"]) * 1e3, "ms", target="< 20"),
    )
    return Report("start", "Start: medians of fresh processes, CPU tensors", rows)
