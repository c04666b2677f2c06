"""``python -m benchmarks.plots FILE [--out DIR]``: the roofline plots of a ``gpu.json``.

These kernels move memory and compute little, so the roof limits the bytes a call must move. A large call cannot exceed
the copy rate, and a small one cannot be faster than a launch. Each op has one plot. Each point is a median with the
middle half of its samples.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

MARKS = ("o", "s", "^", "v", "D", "P", "X", "*")


def rate_and_launch(results: Json) -> tuple[float, float]:
    """The two roofs: bytes per second, and the seconds of the smallest launch."""
    copied = results["copy"]
    rate = copied["bytes"] / (statistics.median(copied["samples_ms"]) * 1e-3)
    return rate, statistics.median(results["launch"]["samples_ms"]) * 1e-3


def roof(moved_bytes: float, rate: float, launch_s: float) -> float:
    """The bytes per second that a call moving this many bytes can reach."""
    return moved_bytes / (launch_s + moved_bytes / rate)


def quartiles(samples_ms: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile, in seconds."""
    low, middle, high = statistics.quantiles(samples_ms, n=4)
    return low * 1e-3, middle * 1e-3, high * 1e-3


def points(results: Json, op: str) -> dict[str, list[tuple[float, float, float, float]]]:
    """Per contestant: bytes moved, then bytes per second at the upper quartile, median and lower quartile of time."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for case in results["cases"]:
        if case["op"] != op:
            continue
        for name, samples in case["samples_ms"].items():
            low, middle, high = quartiles(samples)
            moved = float(case["moved_bytes"])
            found.setdefault(name, []).append((moved, moved / high, moved / middle, moved / low))
    return found


def title(results: Json, op: str) -> str:
    """The op and the dtype of its cases."""
    return f"{op}, {', '.join(dict.fromkeys(case['dtype'] for case in results['cases'] if case['op'] == op))}"


def draw(results: Json, folder: Path) -> list[Path]:
    """Draws one SVG per op and returns their paths."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "precast"  # makes the output reproducible
    from matplotlib import pyplot as plt

    rate, launch_s = rate_and_launch(results)
    facts, drawn = results["facts"], []
    for op in dict.fromkeys(case["op"] for case in results["cases"]):
        figure, axes = plt.subplots(figsize=(7, 4.5))
        line = [10 ** (5 + step / 20) for step in range(101)]
        axes.plot(
            line, [roof(moved, rate, launch_s) * 1e-9 for moved in line], color="black", label="roof: launch + copy"
        )
        for mark, (name, found) in zip(MARKS * 2, points(results, op).items(), strict=False):
            xs, lows, middles, highs = zip(*found, strict=True)
            spread = [
                [(middle - low) * 1e-9 for low, middle in zip(lows, middles, strict=True)],
                [(high - middle) * 1e-9 for high, middle in zip(highs, middles, strict=True)],
            ]
            axes.errorbar(
                xs, [y * 1e-9 for y in middles], yerr=spread, fmt=mark, label=name, capsize=3, markersize=5, alpha=0.8
            )
        axes.set(xscale="log", yscale="log", xlabel="bytes that must move", ylabel="GB/s", title=title(results, op))
        axes.grid(visible=True, which="both", alpha=0.2)
        axes.legend(fontsize=7, loc="lower right")
        figure.text(0.01, 0.01, f"{facts['gpu']}, torch {facts['torch']}, {facts['date']}", fontsize=6)
        path = folder / f"roofline-{op.replace(' ', '-')}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        drawn.append(path)
    return drawn


def main() -> int:
    """Draw the plots of one file, next to it or elsewhere."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="a gpu.json")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the plots go; beside the file by default")
    options = parser.parse_args()
    folder = options.out or options.file.parent
    folder.mkdir(parents=True, exist_ok=True)
    for path in draw(json.loads(options.file.read_text(encoding="utf-8")), folder):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
