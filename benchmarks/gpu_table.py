"""``python -m benchmarks.gpu_table FILE...``: the figures of ``gpu.json`` files compared with the targets, as Markdown.

Each file belongs to a label and has its own column for the share of the copy rate. All other columns are from the last
file.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.asked import asked
from benchmarks.gpu_cases import OURS, SECOND
from benchmarks.norm import COPY

Json = dict[str, Any]


def copy_rate(results: Json) -> float:
    """Bytes per millisecond that the one large ``copy_`` reads and writes."""
    rate: float = results["copy"]["bytes"] / statistics.median(results["copy"]["samples_ms"])
    return rate


def shares(results: Json, case: Json) -> dict[str, float]:
    """Each contestant's share of the copy rate for one op and shape."""
    rate = copy_rate(results)
    return {name: case["moved_bytes"] / statistics.median(ms) / rate for name, ms in case["samples_ms"].items()}


def cell(value: float, least: float | None) -> str:
    """A figure, in bold if it misses its target."""
    text = f"{value:.3f}" if value < 1.1 else f"{value:.2f}"
    if least is None or value >= least:
        return text
    return f"**{value:.4f}** of {least:.2f}" if float(text) >= least else f"**{text}** of {least:.2f}"


def line(all_results: Sequence[Json], cases: Sequence[Json]) -> list[str]:
    """One op at one shape: its shares, then the speedups over a copy and over the peers."""
    last = shares(all_results[-1], cases[-1])
    wanted = asked(cases[-1]["op"], tuple(cases[-1]["shape"]))
    peers = {name: share for name, share in last.items() if name not in (OURS, COPY, SECOND)}
    found = [f"{cases[-1]['op']} {'x'.join(map(str, cases[-1]['shape']))}"]
    for results, case in zip(all_results, cases, strict=True):
        found.append(cell(shares(results, case)[OURS], wanted.share))
    found.append(cell(last[OURS] / last[COPY], wanted.copy))
    best = max(peers, key=lambda name: peers[name])
    found += [cell(last[OURS] / peers[best], wanted.peer), f"{peers[best]:.3f} ({best})"]
    found.append(cell(last[OURS] / last[SECOND], wanted.second) if SECOND in last else "")
    least = [f"share {wanted.share:.2f}"] if wanted.share else []
    least += [f"copy {wanted.copy:.2f}"] if wanted.copy else []
    least += [f"peer {wanted.peer:.1f}"] if wanted.peer else []
    least += [f"second shape {wanted.second:.1f}"] if wanted.second else []
    return [*found, ", ".join(least)]


def table(all_results: Sequence[Json]) -> Iterator[str]:
    """The whole table. Raises ValueError if the files do not hold the same cases."""
    ops = [[(case["op"], case["shape"]) for case in results["cases"]] for results in all_results]
    if any(other != ops[0] for other in ops):
        raise ValueError("benchmarks.gpu_table: the files hold different cases; needed: runs of the same benchmarks")
    labels = [(results["facts"]["build"] or {}).get("label", "ours") for results in all_results]
    head = ["", *labels, "beside a copy", "times the best peer", "best peer", "times its second shape", "asked for"]
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for cases in zip(*(results["cases"] for results in all_results), strict=True):
        yield f"| {' | '.join(line(all_results, cases))} |"
    for results, label in zip(all_results, labels, strict=True):
        facts, rate = results["facts"], copy_rate(results) * 1e-6
        commit = (facts["build"] or facts)["commit"][:9]
        where = f"{facts['gpu']}, torch {facts['torch']}, {facts['date']}"
        yield f"\n{label}: commit {commit}, {where}; copy_ of 4.3 GB moves {rate:,.0f} GB/s."
    missing = {f"{name}: {why}" for case in all_results[-1]["cases"] for name, why in case["absent"].items()}
    yield from (f"\n{text}." for text in sorted(missing))


def main() -> int:
    """Read the files and print the table."""
    if not sys.argv[1:]:
        print(__doc__)
        return 2
    for text in table([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]):
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
