"""``python -m tests.faults [ID ...]``: inject every fault, print the table, keep it as JSON; 1 if a row fails."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.faults import ROWS
from tests.faults.lab import Fault, Lab, NotRun

RESULTS = Path(__file__).resolve().parents[2] / "build" / "faults.json"


def inject(row: Fault, lab: Lab) -> dict[str, object]:
    """One row of the table, as JSON."""
    started = time.monotonic()
    try:
        result, seen = "pass", row.inject(lab)
    except NotRun as why:
        result, seen = "not run", str(why)
    except Exception as error:  # noqa: BLE001  # whatever went wrong, the row failed, and the others are to be tried
        result, seen = "FAIL", f"{type(error).__name__}: {error}"
    facts = {"id": row.id, "fault": row.what, "how": row.how, "result": result, "seen": seen, "lost": row.lost}
    return facts | {"seconds": round(time.monotonic() - started, 1)}


def show(facts: dict[str, object], number: int) -> str:
    """The row as text."""
    head = f"{number:>2}  {facts['id']:<19} {facts['result']:<8} {facts['fault']}  [{facts['seconds']} s]"
    seen = str(facts["seen"]) if facts["result"] == "FAIL" else " ".join(str(facts["seen"]).split())[:220]
    return f"{head}\n      how   {facts['how']}\n      seen  {seen}\n      lost  {facts['lost']}"


def run(rows: Iterable[Fault], results: Path) -> int:
    """Try each in turn; 1 if one fails."""
    table = []
    with tempfile.TemporaryDirectory(prefix="precast-faults-") as folder:
        lab = Lab(Path(folder))
        for number, row in enumerate(rows, 1):
            facts = inject(row, lab)
            table.append(facts)
            print(show(facts, number), flush=True)
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(table, indent=1) + "\n")
    counts = {word: sum(facts["result"] == word for facts in table) for word in ("pass", "FAIL", "not run")}
    print(f"\n{counts['pass']} passed, {counts['FAIL']} failed, {counts['not run']} not run; kept in {results}")
    return 1 if counts["FAIL"] or not counts["pass"] else 0


def main() -> int:
    """All rows, or those named."""
    known = {row.id: row for row in ROWS}
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the table is kept")
    options = parser.parse_args()
    unknown = [name for name in options.ids if name not in known]
    if unknown:
        parser.error(f"no fault is called {', '.join(unknown)}")
    return run([known[name] for name in options.ids] or ROWS, options.json)


if __name__ == "__main__":
    sys.exit(main())
