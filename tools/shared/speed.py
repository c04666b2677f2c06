"""The sentences of README.md on speed, from the kept results of the GPU benchmarks."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from precast.errors import KernelError

FILE = "docs/benchmarks/h200-cu130.json"
OP = "rms_norm"
SHAPES = ((32768, 4096), (4096, 4096))  # the share falls where the launch is a part of the time: both are told
ADAM, MASTERS = "AdamW", "AdamW with masters"
_OURS, _TORCH = "precast", "torch fused"

Json = dict[str, Any]


def read(path: Path) -> Json:
    """The results. KernelError if what was measured is no commit that others can check out."""
    results: Json = json.loads(path.read_text(encoding="utf-8"))
    facts = results["facts"]
    commit = str((facts["build"] or facts).get("commit") or "none")
    if commit == "none" or commit.endswith("-dirty"):
        raise KernelError(
            f"{path.name}: its figures cannot be shown",
            found=f"commit {commit}",
            needed="a wheel of a commit without changes",
            fix=f"git stash && python -m benchmarks.gpu --json {path.parent}",
        )
    return results


def sentence(results: Json) -> str:
    """Shares of the copy rate at each shape, the optimizer compared with torch, and the commit that was measured."""
    facts = results["facts"]
    rate = results["copy"]["bytes"] / statistics.median(results["copy"]["samples_ms"])
    (large, gradients), (small, small_gradients) = (
        [f"{_share(results, rate, op, shape):.0%}".replace("%", " %") for op in (OP, f"{OP} backward")]
        for shape in SHAPES
    )
    commit = (facts["build"] or facts)["commit"][:9]
    elements = math.prod(next(one["shape"] for one in results["cases"] if one["op"] == ADAM))
    return (
        f"In bf16 at {SHAPES[0][0]} x {SHAPES[0][1]}, `{OP}` reaches {large} of copy bandwidth "
        f"(gradients {gradients}); at {SHAPES[1][0]} x {SHAPES[1][1]}, {small} (gradients {small_gradients}). "
        f"AdamW on {elements / 1e6:.0f} M fp32 parameters is {_times(results, ADAM):.2f} times as fast as the fused "
        f"step of torch, {_times(results, MASTERS):.2f} times with bf16 parameters and fp32 masters. "
        f"Measured on {facts['date'][:10]} on one {facts['gpu']}, at commit {commit}."
    )


def _times(results: Json, op: str) -> float:
    (samples,) = (one["samples_ms"] for one in results["cases"] if one["op"] == op)
    return float(statistics.median(samples[_TORCH]) / statistics.median(samples[_OURS]))


def _share(results: Json, rate: float, op: str, shape: tuple[int, ...]) -> float:
    (case,) = (one for one in results["cases"] if one["op"] == op and tuple(one["shape"]) == shape)
    return float(case["moved_bytes"] / statistics.median(case["samples_ms"][_OURS]) / rate)
