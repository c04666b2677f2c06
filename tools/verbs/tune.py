"""Time the configurations that row kernels can have on this GPU, and write the medians to a file for review.

The cases and configurations are those of benchmarks/tuning.toml. The tables of rules (csrc/gpu/row_policy.h) are
written by hand from such files; csrc/LAUNCH.md has the figure behind each breakpoint.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    """Run benchmarks.tuning, which needs torch."""
    parser = argparse.ArgumentParser(prog="python -m tools tune", description=__doc__)
    parser.add_argument("--out", required=True, help="the file with the medians")
    parser.add_argument("--site", help="measure what is installed in this folder (pip install --target)")
    parser.add_argument("--only", help="the cases whose text has this")
    options = vars(parser.parse_args(arguments))
    given = (text for name, value in options.items() if value is not None for text in (f"--{name}", value))
    return subprocess.run([sys.executable, "-m", "benchmarks.tuning", *given], cwd=ROOT, check=False).returncode
