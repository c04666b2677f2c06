"""``python -m benchmarks.plots FILE [--out DIR]``: the roofline plots of a ``gpu.json``.

These kernels move memory and compute little, so the roof is over the bytes a call must move: a large call cannot be
faster than the copy rate, a small one not faster than a launch. Each op is one plot; each point a median with the
middle half of its samples.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# One colour for each contestant (Okabe and Ito, "Color Universal Design"), around again in another shape.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
WIDTH, HEIGHT = 800, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 176, 30, 48  # margins of the axes; the names stand in the right one
HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">'
)


def rate_and_launch(results: Json) -> tuple[float, float]:
    """The two roofs: bytes in a second, and the seconds of the smallest launch."""
    copied = results["copy"]
    rate = copied["bytes"] / (statistics.median(copied["samples_ms"]) * 1e-3)
    return rate, statistics.median(results["launch"]["samples_ms"]) * 1e-3


def roof(moved_bytes: float, rate: float, launch_s: float) -> float:
    """The bytes in a second that a call of so many bytes can reach."""
    return moved_bytes / (launch_s + moved_bytes / rate)


def quartiles(samples_ms: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile, in seconds."""
    low, middle, high = statistics.quantiles(samples_ms, n=4)
    return low * 1e-3, middle * 1e-3, high * 1e-3


def points(results: Json, op: str) -> dict[str, list[tuple[float, float, float, float]]]:
    """Of each contestant: bytes moved, then bytes in a second at the upper quartile, median and lower one of time."""
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
    """One SVG for each op; returns their paths."""
    drawn = []
    for op in dict.fromkeys(case["op"] for case in results["cases"]):
        path = folder / f"roofline-{op.replace(' ', '-')}.svg"
        path.write_text(svg(results, op), encoding="utf-8")
        drawn.append(path)
    return drawn


class Axes:
    """Two logarithmic axes, from values to the places of a page."""

    def __init__(self, xs: list[float], ys: list[float]) -> None:
        self.x_range = math.log10(min(xs)) - 0.1, math.log10(max(xs)) + 0.1
        self.y_range = math.log10(min(ys)) - 0.1, math.log10(max(ys)) + 0.1

    def x(self, value: float) -> str:
        """How far to the right."""
        low, high = self.x_range
        return f"{LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT):.1f}"

    def y(self, value: float) -> str:
        """How far down."""
        low, high = self.y_range
        return f"{HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM):.1f}"


def svg(results: Json, op: str) -> str:
    """The plot of one op: text is text, and what a contestant has is one path."""
    rate, launch_s = rate_and_launch(results)
    found, facts = points(results, op), results["facts"]
    xs = [moved for values in found.values() for moved, *_ in values]
    ys = [rate, *(end for values in found.values() for _, *ends in values for end in ends)]
    axes = Axes(xs, ys)
    steps = [min(xs) * (max(xs) / min(xs)) ** (step / 40) for step in range(41)]
    line = [(x, y) for x in steps if (y := roof(x, rate, launch_s)) >= 10 ** axes.y_range[0]]
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        HEAD,
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_grid(axes),
        _text((LEFT + WIDTH - RIGHT) / 2, 18, title(results, op), ' text-anchor="middle" font-size="14"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, "bytes that must move", ' text-anchor="middle"'),
        _text(LEFT, TOP - 6, "GB/s", ' text-anchor="end"'),
        _text(4, HEIGHT - 4, f"{facts['gpu']}, torch {facts['torch']}, {facts['date']}", ' font-size="9"'),
        f'<path d="M{" ".join(f"{axes.x(x)},{axes.y(y)}" for x, y in line)}" fill="none" stroke="black"/>',
    ]
    lines.append(_text(WIDTH - RIGHT + 10, TOP + 10, "roof: launch + copy", ""))
    for number, (name, values) in enumerate(found.items()):
        mark = "h6v6h-6z" if number % 2 else "l3-3l3 3l-3 3z"
        colour = COLOURS[number % len(COLOURS)]
        path = "".join(_point(axes, *value, mark) for value in values)
        lines.append(f'<path d="{path}" fill="{colour}" fill-opacity="0.8" stroke="{colour}"/>')
        lines.append(_text(WIDTH - RIGHT + 10, TOP + 26 + 16 * number, name, f' fill="{colour}"'))
    return "\n".join((*lines, "</svg>", ""))


def _point(axes: Axes, moved: float, low: float, middle: float, high: float, mark: str) -> str:
    """A bar from the lower quartile to the upper one, and a mark at the median."""
    x, start = axes.x(moved), "m-3-3" if mark.startswith("h") else "m-3 0"
    return f"M{x} {axes.y(low)}V{axes.y(high)}M{x} {axes.y(middle)}{start}{mark}"


def _grid(axes: Axes) -> Iterator[str]:
    """A line and a number at each power of ten, at its double and at its fivefold."""
    path, numbers = "", []
    ticks = [step * 10.0**power for power in range(15) for step in (1, 2, 5)]
    for value in ticks:
        if axes.x_range[0] <= math.log10(value) <= axes.x_range[1]:
            place = axes.x(value)
            path += f"M{place} {TOP}V{HEIGHT - BOTTOM}"
            words = f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
            numbers.append(_text(float(place), HEIGHT - BOTTOM + 14, words, ' text-anchor="middle"'))
        if axes.y_range[0] <= math.log10(value) <= axes.y_range[1]:
            place = axes.y(value)
            path += f"M{LEFT} {place}H{WIDTH - RIGHT}"
            numbers.append(_text(LEFT - 6, float(place) + 4, f"{value * 1e-9:g}", ' text-anchor="end"'))
    yield f'<path d="{path}" fill="none" stroke="#ddd"/>'
    yield from numbers


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:g}" y="{y:g}"{style}>{html.escape(words)}</text>'


def main() -> int:
    """Draw the plots of one file beside it, or elsewhere."""
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
