"""``python -m benchmarks.release_cost FILE``: what a release costs, compared with one wheel for each cell.

A cell is one way to have torch: a release, its CUDA or CPU build, a Python, an architecture. ``matrix.toml`` says how
many there are. Ours is recorded (docs/guides/release.md has the run). The others are computed from the recorded steps,
with one host library and one label's device code in each wheel.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from precast._builder import matrix
from tools.shared import served
from tools.shared.cells import expand

ROOT = Path(__file__).resolve().parents[1]

# `make release-local` from nothing on two cores.
RELEASE_MIN, CORES, RELEASE_MB = 12 + 39 / 60, 2, 102.1
# Processor time of its steps: one label's device code, one host library at its quickest, one wheel by the hooks.
DEVICE_S, HOST_S, WHEEL_S = 32, 45, 8
# Wheels with one host library: PRECAST_ONLY_TORCH=2.10 with the label cu130, and with cpu.
CUDA_MB, CPU_MB = 4.59, 1.13
OURS, SHARED, ALONE = "precast", "a wheel per cell, shared", "a wheel per cell, alone"


def cost(root: Path) -> dict[str, object]:
    """The file that ``benchmarks.plots`` draws."""
    known = matrix.load(root / "matrix.toml")
    cells = served.torch_cells(known)
    cpu = sum(cell.build.name == "cpu" for cell in cells)
    cuda, wheels = len(cells) - cpu, len(expand(known, known.event("release")).wheel)
    ours = RELEASE_MIN * CORES
    shared = ours + (len(cells) - wheels) * WHEEL_S / 60
    alone = (cuda * (DEVICE_S + HOST_S + WHEEL_S) + cpu * (HOST_S + WHEEL_S)) / 60
    megabytes = round(cuda * CUDA_MB + cpu * CPU_MB)
    said = f"A cell: torch, CUDA, Python, architecture. {wheels} wheels measured, {len(cells)} computed"
    return {
        "schema": 1,
        "name": "release",
        "title": "The cost of a release, compared with one wheel for each cell",
        "facts": said,
        "amounts": {
            "Wheels": {"unit": "", "of": {OURS: wheels, "a wheel per cell": len(cells)}},
            "Size": {"unit": "MB", "of": {OURS: RELEASE_MB, "a wheel per cell": megabytes}},
            "Minutes x cores": {
                "unit": "min",
                "of": {OURS: round(ours, 1), SHARED: round(shared, 1), ALONE: round(alone, 1)},
            },
        },
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(cost(ROOT), indent=1) + "\n", encoding="utf-8")
