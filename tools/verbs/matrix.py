"""Print matrix.toml as JSON, checked: what workflows and scripts take versions from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from precast._builder import matrix


def as_json(known: matrix.Matrix) -> dict[str, object]:
    """The matrix as plain values, with the targets of a label as one list."""
    return {
        "python": [str(python) for python in known.pythons],
        "torch": {
            "floor": known.torch_floor,
            "stable_floor": str(known.stable_floor),
            "headers": known.headers,
            "releases": {
                release.version: {
                    machine: {
                        "python": [str(python) for python in release.pythons[machine]],
                        "pypi": release.pypi[machine],
                        "builds": {build.name: str(known.binding_of(release, build)) for build in builds},
                    }
                    for machine, builds in release.builds.items()
                }
                for release in known.releases
            },
        },
        "wheel": {"policy": known.policy, "max_bytes": known.max_bytes},
        "machines": {
            machine.name: {"runner": machine.runner, "image": machine.image, "not_built": machine.not_built}
            for machine in known.machine_specs
        },
        "gpu": {"runner": known.gpu_runner},
        "labels": {
            spec.name: {
                "requirement": spec.requirement,
                "targets": [str(target) for target in spec.targets],
                "max_bytes": known.max_bytes_of(spec.label),
                "not_built": spec.not_built,
            }
            for spec in known.labels
        },
    }


def main(arguments: list[str]) -> int:
    """Read, check, print."""
    parser = argparse.ArgumentParser(prog="python -m tools matrix", description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=Path(__file__).resolve().parents[2] / "matrix.toml")
    print(json.dumps(as_json(matrix.load(parser.parse_args(arguments).path)), indent=1))
    return 0
