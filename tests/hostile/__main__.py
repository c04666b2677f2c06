"""``python -m tests.hostile``: hostile arguments for every public function and op; 1 if one breaks the law."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

from tests.hostile import apart


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--count", type=int, help="how many cases are drawn; all by default")
    parser.add_argument("--part", metavar="I/N", default="1/1", help="of the cases, every Nth from the Ith on")
    parser.add_argument("--op", action="append", default=[], help="only calls whose name contains this")
    parser.add_argument("--case", action="append", default=[], help="only cases whose text contains this")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--json", type=Path, help="where the results are kept")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        apart.child(options.device)
        return 0
    from tests.hostile import law

    begun = time.monotonic()
    cases = [case for case in law.cases(options.device) if all(name in case.call for name in options.op)]
    cases = [case for case in cases if all(text in str(case) for text in options.case)]
    if options.count is not None:
        cases = random.Random(options.seed).sample(cases, min(options.count, len(cases)))
    part, parts = map(int, options.part.split("/"))
    cases = cases[part - 1 :: parts]
    outcome = apart.run(cases, options.device, lambda line: print(line, flush=True), options.jobs)
    for how, number in outcome.counts.most_common():
        print(f"{how}: {number}")
    print(f"{len(cases)} cases in {time.monotonic() - begun:.0f} s")
    if options.json is not None:
        options.json.write_text(json.dumps({"counts": outcome.counts, "broken": outcome.broken}, indent=1) + "\n")
    return 1 if outcome.broken or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
