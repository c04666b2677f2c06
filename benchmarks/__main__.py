"""``python -m benchmarks [NAME ...]``: run all benchmarks, or those named, print their tables, keep them as JSON."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

from benchmarks import child
from benchmarks.report import RESULTS, host_facts, print_report, save

# The cheap ones come first.
NAMES = (
    "start",
    "call",
    "big_cache",
    "warm_load",
    "cold_start",
    "cold_jit",
    "rebuild",
    "ranks",
    "sharded",
    "cpu_adam",
    "cpu_optim",
    "cpu_rows",
    "cpu_serving",
    "cpu_image",
    "device_jit",
    "norm",
    "layer_norm",
    "activations",
    "softmax",
    "losses",
    "rotary",
    "fused_adam",
    "kv_cache",
    "norm_rotary",
    "convolution",
    "gated_norm",
    "decode_attention",
    "delta_rule",
    "moe",
)


def run(names: list[str]) -> None:
    """Run and print the named benchmarks."""
    facts = host_facts()
    print("; ".join(f"{key} {value}" for key, value in facts.items()))
    for name in names:
        report = importlib.import_module(f"benchmarks.{name}").main()
        print_report(report)
        save(report, facts)
        sys.stdout.flush()
    print(f"\nA ratio above 1 means that precast is better. The figures are kept in {RESULTS}.")


def main() -> int:
    """Build an installation for this machine, unless one is given, and run the benchmarks on it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all of them by default")
    parser.add_argument("--site", type=Path, help="measure the wheel installed in this folder (pip install --target)")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as folder:
        child.use_installation((options.site or child.build_installation(Path(folder))).resolve())
        run(options.names or list(NAMES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
