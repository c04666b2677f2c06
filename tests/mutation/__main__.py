"""``python -m tests.mutation``: small changes of the Python parts, to see whether a test notices each of them.

Mutants are drawn at random and put one at a time into a copy of the tree, below build/mutation. The tests that run the
changed line, the quickest first, must fail. A mutant that behaves as the original does is recorded in equivalent.toml,
with the reason. The status is not 0 if another mutant survives, or if an entry of that file matches no line.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.mutation import covered, equivalent, mutants
from tests.mutation.runner import Project, Runner, Verdict

CHECKOUT = Path(__file__).resolve().parents[2]
# The one list of what is changed, and of the tests that may notice. Tests that need more than seconds are left out.
PRECAST = Project(
    checkout=CHECKOUT,
    place=CHECKOUT / "build" / "mutation",
    sources=(
        *("pkg/precast/core/*.py", "pkg/precast/_abi/**/*.py", "pkg/precast/_load/**/*.py"),
        "pkg/precast/_builder*/**/*.py",
        *("tools/guards/**/*.py", "pkg/precast/ops/_checks.py"),
    ),
    tests=(
        *("tests/unit/abi/test_*.py", "tests/unit/builder/test_*.py", "tests/unit/load/test_*.py"),
        *("tests/unit/tools/**/test_*.py", "tests/unit/cli/test_*.py", "tests/property/test_*.py"),
        *("tests/unit/extension/test_*.py", "tests/unit/test_[!p]*.py", "tests/fuzz/test_*.py"),
        *("tests/ops/test_*bad_input.py", "tests/ops/test_fakes.py", "tests/ops/test_*norm.py"),
        *("tests/ops/test_activations.py", "tests/ops/test_adam.py", "tests/ops/test_list*.py"),
    ),
    telling=(("dataclass(frozen=True", "tests/unit/test_frozen.py::test_every_value_is_frozen"),),
    marks="not (long or wheel or nvcc or headers or act or gpu or freethreaded or qemu or container)",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="how many mutants are drawn (default: 200)")
    parser.add_argument("--seed", type=int, help="draws the same mutants again; printed when it is left out")
    parser.add_argument("--only", default="", help="draw from the files whose path has this text in it")
    parser.add_argument("--again", action="store_true", help="draw nothing: try the survivors of the last run again")
    parser.add_argument("--coverage", action="store_true", help="no mutants: print the branches that no test takes")
    return parser.parse_args()


def print_coverage(project: Project, folder: Path) -> None:
    """Print one line for each file, and the sum."""
    rows = list(covered.report(project.tree, folder, project.files))
    print(f"{'branches':>8} {'missed':>7}  file (lines with a branch that no test takes)")
    for file, branches, missed, lines in rows:
        print(f"{branches:8} {missed:7}  {file} {' '.join(map(str, lines))}".rstrip())
    branches, missed = (sum(row[place] for row in rows) for place in (1, 2))
    print(f"{branches:8} {missed:7}  in all: {100 * (branches - missed) / max(branches, 1):.1f} % taken")


def main() -> int:
    """Return 0 if every mutant was noticed or is recorded as equivalent."""
    asked = arguments()
    try:
        with PRECAST.alone():
            return run(asked)
    except BlockingIOError:
        sys.exit(f"another run is using {PRECAST.place}")


def run(asked: argparse.Namespace) -> int:
    """Do what was asked for."""
    known = equivalent.read(Path(__file__).with_name("equivalent.toml"))
    PRECAST.copy()
    stale = equivalent.stale(known, PRECAST.texts())
    for entry in stale:
        print(f"equivalent.toml: no such line in {entry.file}: {entry.line}")
    folder = covered.measure(PRECAST.tree, PRECAST.files, PRECAST.test_files, PRECAST.marks, PRECAST.environment)
    if asked.coverage:
        print_coverage(PRECAST, folder)
        return 0
    runner = Runner(PRECAST, covered.read(PRECAST.tree, folder), known)
    if asked.again:
        drawn = runner.last_survivors()
    else:
        seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
        sources = {file: text for file, text in PRECAST.texts().items() if asked.only in file}
        drawn = mutants.draw(sources, asked.count, seed)
        print(f"{len(drawn)} mutants of {len(sources)} files, --seed {seed}", flush=True)
    counts, survivors = runner.run_all(drawn)
    for mutant in survivors:
        print(f"\nsurvived: {mutant.file}:{mutant.line}\n{mutant.diff((PRECAST.tree / mutant.file).read_text())}")
    print("\n" + ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict))
    return int(bool(survivors or stale))


if __name__ == "__main__":
    sys.exit(main())
