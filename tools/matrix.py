"""Print matrix.toml as JSON, checked: what workflows and scripts take versions from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from precast._build import matrix


def as_json(known: matrix.Matrix) -> dict[str, object]:
    """The matrix as plain values; a label's targets as one list."""
    return {
        "torch": {"floor": known.torch_floor, "stable_floor": str(known.stable_floor), "headers": known.headers},
        "wheel": {"policy": known.policy, "max_bytes": known.max_bytes, "machines": list(known.machines)},
        "runners": dict(known.runners),
        "labels": {
            str(spec.label): {"requirement": spec.requirement, "targets": [str(target) for target in spec.targets]}
            for spec in known.labels
        },
    }


def main(arguments: list[str]) -> int:
    """Read, check, print."""
    parser = argparse.ArgumentParser(prog="python -m tools matrix", description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=Path(__file__).resolve().parents[1] / "matrix.toml")
    print(json.dumps(as_json(matrix.load(parser.parse_args(arguments).path)), indent=1))
    return 0
