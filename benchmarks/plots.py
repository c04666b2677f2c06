"""``python -m benchmarks.plots FILE... [--out DIR]``: the charts of a ``gpu.json``, or of a file of times or amounts.

A chart has horizontal bars, one group for each shape or question. Our bars have one colour in every chart. Peers are
grey, and names stand beside the bars, so nothing depends on colours. A GPU bar is the share of the copy rate: these
kernels move memory and compute little, so 100 % is what a large copy reaches.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_cases import OURS, SECOND
from benchmarks.gpu_table import shares
from benchmarks.norm import COPY

Json = dict[str, Any]

WIDTH, NAMES, END = 600, 168, 540  # of the picture, of the names on the left, where 100 % ends
BAR, STEP, HEAD, GAP = 13, 17, 22, 6
GRID = (0, 50, 100)
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1c2430}.t{font-weight:600;font-size:15px}.h{font-weight:600}"
    ".q{fill:#5d6b7e;font-size:11px}.e{text-anchor:end}rect{fill:#a9b4c1}.p{fill:#fff}.o{fill:#0b6e4f}path{stroke:#c3cbd4}"
    "@media(prefers-color-scheme:dark){text{fill:#e6eaf0}.q{fill:#a3afbe}rect{fill:#566273}.p{fill:#12181f}.o{fill:#3fbf8f}"
    "path{stroke:#3a4656}}"
)
PAPER = '<rect class="p" width="100%" height="100%"/>'  # a page may be dark where the reader's system is not
# The public functions and classes whose pages show the chart of an op of the benchmarks.
PAGES = {
    "fused_add_rms_norm": "fused_add_rms_norm fused_add_rms_norm_",
    "masked softmax": "scaled_masked_softmax scaled_softmax",
    "causal softmax": "scaled_upper_triang_masked_softmax scaled_aligned_causal_softmax",
    # gated activations share kernels, memory traffic and all but a few instructions
    "silu_and_mul": "silu_and_mul mul_and_silu gelu_and_mul gelu_tanh_and_mul fatrelu_and_mul swigluoai_and_mul",
    "rotary_embedding": "rotary_embedding rotary_embedding_",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its length as a share of the axis, and the words at its end."""

    name: str
    share: float
    words: str

    @property
    def ours(self) -> bool:
        """Whether it is a kernel of ours, which has our colour."""
        return self.name.startswith(OURS)


Groups = Sequence[tuple[str, Sequence[Bar]]]


def chart(title: str, groups: Groups, below: str, *, ops: str = "", grid: Sequence[int] = ()) -> str:
    """A chart as SVG. ``grid`` are per cents with a line; ``ops`` are the functions that it is about."""
    lines, y = [f'<text class="t" x="8" y="20">{html.escape(title)}</text>'], 30
    for heading, bars in groups:
        y += GAP + HEAD
        lines.append(f'<text class="h" x="8" y="{y - 7}">{html.escape(heading)}</text>')
        for bar in bars:
            width = bar.share * (END - NAMES)
            own = ' class="o"' if bar.ours else ""
            lines += [
                f'<text class="e" x="{NAMES - 6}" y="{y + 11}">{html.escape(bar.name)}</text>',
                f'<rect x="{NAMES}" y="{y}" width="{width:.1f}" height="{BAR}"{own}/>',
                f'<text x="{NAMES + width + 5:.1f}" y="{y + 11}">{html.escape(bar.words)}</text>',
            ]
            y += STEP
    marks = [NAMES + percent / 100 * (END - NAMES) for percent in grid]
    path = "".join(f"M{x:g} 34V{y + 2}" for x in marks)
    numbers = [f'<text class="q" x="{x - 10:g}" y="{y + 15}">{n} %</text>' for x, n in zip(marks, grid, strict=True)]
    height = y + 36
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" data-ops="{ops}">'
    spoken = "; ".join(f"{heading}: " + ", ".join(f"{b.name} {b.words}" for b in bars) for heading, bars in groups)
    about = f"<title>{html.escape(title)}</title><desc>{html.escape(spoken)}</desc>"
    foot = f'<text class="q" x="8" y="{height - 6}">{html.escape(below)}</text>'
    grid_lines = f'<path d="{path}" stroke-dasharray="2 3"/>' if path else ""
    return "\n".join((head, about, f"<style>{STYLE}</style>", PAPER, grid_lines, *lines, *numbers, foot, "</svg>", ""))


def bars_of(found: dict[str, float]) -> list[Bar]:
    """Ours first, then the peers from the fastest on; a copy of as many bytes and a second shape are in the table."""
    peers = sorted((name for name in found if name not in (OURS, COPY, SECOND)), key=lambda name: -found[name])
    return [Bar(name, found[name], f"{100 * found[name]:.0f} %") for name in (OURS, *peers) if name in found]


def facts(results: Json, cases: Sequence[Json]) -> str:
    """The line below a chart of these cases."""
    known = results["facts"]
    dtypes = " and ".join(dict.fromkeys(case["dtype"] for case in cases))
    return f"per cent of the copy rate; {known['gpu']}, torch {known['torch']}, {dtypes}, {known['date'][:10]}"


def gpu_charts(results: Json) -> Iterator[tuple[str, str]]:
    """File name and SVG for each op, and an overview of all ops at their largest shape, beside the best peer."""
    largest: dict[str, list[Bar]] = {}
    for op in dict.fromkeys(case["op"] for case in results["cases"]):
        cases = [case for case in results["cases"] if case["op"] == op]
        groups = [(" x ".join(map(str, case["shape"])), bars_of(shares(results, case))) for case in cases]
        bars = groups[0][1]
        largest[op] = bars[:2]
        name = op.removesuffix(" forward").removesuffix(" backward")
        page = PAGES.get(name, name) if " with " not in name else ""
        yield f"bars-{op.replace(' ', '-')}.svg", chart(op, groups, facts(results, cases), ops=page, grid=GRID)
    title, below = "Each op at its largest shape, and its best peer", facts(results, results["cases"])
    yield "bars-overview.svg", chart(title, list(largest.items()), below, grid=GRID)


def time_charts(results: Json) -> Iterator[tuple[str, str]]:
    """The chart of a file of times: for each question the seconds of ours and of each peer."""
    groups = [
        (asked, bars_to_scale({name: (seconds, duration(seconds)) for name, seconds in times.items()}))
        for asked, times in results["seconds"].items()
    ]
    yield f"bars-{results['name']}.svg", chart(results["title"], groups, results["facts"], ops=results.get("ops", ""))


def amount_charts(results: Json) -> Iterator[tuple[str, str]]:
    """The chart of a file of amounts: for each question ours and each peer's, in its unit."""
    groups = [
        (asked, bars_to_scale({name: (n, f"{n:,g} {found['unit']}".strip()) for name, n in found["of"].items()}))
        for asked, found in results["amounts"].items()
    ]
    yield f"bars-{results['name']}.svg", chart(results["title"], groups, results["facts"], ops=results.get("ops", ""))


def bars_to_scale(values: dict[str, tuple[float, str]]) -> list[Bar]:
    """A bar for each value, the longest as long as leaves room for its words."""
    longest = max(value for value, _ in values.values())
    return [Bar(name, value / longest * 0.88, words) for name, (value, words) in values.items()]


def duration(seconds: float) -> str:
    """``0.0152`` -> ``15 ms``."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def draw(results: Json, folder: Path) -> list[Path]:
    """Write the charts of one file; returns their paths."""
    drawn = []
    kinds = {"seconds": time_charts, "amounts": amount_charts}
    charts = next((made for key, made in kinds.items() if key in results), gpu_charts)
    for name, svg in charts(results):
        (folder / name).write_text(svg, encoding="utf-8")
        drawn.append(folder / name)
    return drawn


def main() -> int:
    """Draw the charts of each file beside it, or elsewhere."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a gpu.json, or a file of times or amounts")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the charts go; beside each file by default")
    options = parser.parse_args()
    for file in options.files:
        folder = options.out or file.parent
        folder.mkdir(parents=True, exist_ok=True)
        for path in draw(json.loads(file.read_text(encoding="utf-8")), folder):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
