"""``python -m benchmarks [NAME ...]``: run all benchmarks, or those named, print their tables, keep them as JSON."""

from __future__ import annotations

import argparse
import importlib
import sys

from benchmarks.report import RESULTS, host_facts, print_report, save

# In this order: the cheap ones first.
NAMES = ("start", "call", "cold_jit", "cpu_adam", "device_jit", "norm")


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all of them by default")
    names = parser.parse_args().names or NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    facts = host_facts()
    print("; ".join(f"{key} {value}" for key, value in facts.items()))
    for name in names:
        report = importlib.import_module(f"benchmarks.{name}").main()
        print_report(report)
        save(report, facts)
        sys.stdout.flush()
    print(f"\nA ratio above 1 means that precast is better. The figures are kept in {RESULTS}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
