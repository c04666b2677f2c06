"""``python -m benchmarks.tables``: print the saved results as the tables of docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.report import RESULTS, number


def table(result: dict[str, Any]) -> str:
    """One benchmark as Markdown, with the machine on which it was measured."""
    host = result["host"]
    where = host["gpu"] if host["gpu"] != "none" else f"{host['cpu']}, {host['threads']} threads"
    lines = [
        f"### {result['title']}",
        "",
        f"{where}; torch {host['torch']}, Python {host['python']}; {host['date']}.",
        "",
    ]
    lines += ["| | precast | peer | times better | asked for |", "| --- | --- | --- | --- | --- |"]
    for row in result["rows"]:
        peer = "" if row["peer"] is None else f"{number(row['peer'])} {row['unit']} ({row['peer_name']})"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(
            f"| {row['what'].strip()} | {number(row['ours'])} {row['unit']} | {peer} | {ratio} | {row['target']} |"
        )
    return "\n".join([*lines, *(f"\n{note}" for note in result["notes"])])


def main() -> int:
    """Print every result that has rows."""
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    print("\n\n".join(table(result) for result in results if result["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
