"""Which tests run which lines: measured once for each test file, kept until the file or the code changes.

This module is also the pytest plugin that measures: coverage.py then stores each line under the test that runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CURRENT = "PRECAST_MUTATION_TEST"  # what a child process reads the name of its test from
STARTS = "COVERAGE_PROCESS_START"  # with which coverage.py starts by itself in every Python, children too
RESULTS = "PRECAST_MUTATION_RESULTS"
SECONDS_FOR_A_FILE = 1800
MOST_TELLING = 3
CONFIG = """\
[run]
branch = true
parallel = true
data_file = {data}
context = ${{{current}-}}
include =
    {include}
"""


def test_of(nodeid: str) -> str:
    """Return the test function, without the parameters of a case."""
    return nodeid.partition("[")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    if STARTS not in os.environ:
        return (yield)
    from coverage import Coverage

    measured = Coverage.current()
    os.environ[CURRENT] = test_of(item.nodeid)
    measured.switch_context(test_of(item.nodeid))
    try:
        return (yield)
    finally:
        del os.environ[CURRENT]
        measured.switch_context("")


# By test: processor seconds, of children too, so that a busy machine changes no choice; and whether it passed.
_outcomes: dict[str, list[Any]] = {}
_used = [0.0]


def _more_used() -> float:
    """Return the processor seconds since the last call."""
    _used.append(sum(os.times()[:4]))
    return _used[-1] - _used.pop(0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds, good = _outcomes.get(test_of(report.nodeid), [0.0, True])
    _outcomes[test_of(report.nodeid)] = [seconds + _more_used(), good and not report.failed]


def pytest_collection_finish() -> None:
    _more_used()


def pytest_sessionfinish() -> None:
    if RESULTS in os.environ:
        Path(os.environ[RESULTS]).write_text(json.dumps(_outcomes))


@dataclass
class Covered:
    """What the tests run. ``good`` has the processor seconds of each test function that passes on the code as it is."""

    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    good: dict[str, float] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)

    def of_lines(self, file: str, lines: Iterable[int]) -> list[str]:
        """Return the tests that run one of the lines, the quickest first."""
        there = self.lines.get(file, {})
        every: set[str] = set().union(*(there.get(line, set()) for line in lines))
        return sorted(every & self.good.keys(), key=self.good.__getitem__)

    def of_file(self, file: str) -> list[str]:
        """Return the tests that run any line of a file, the quickest first."""
        return self.of_lines(file, self.lines.get(file, {}))

    def beside(self, file: str) -> list[str]:
        """Return all tests of the test files that say most about a file, the quickest first."""
        most = Counter(test.partition("::")[0] for test in self.of_file(file)).most_common(MOST_TELLING)
        chosen = {name for name, _ in most}
        return sorted((t for t in self.good if t.partition("::")[0] in chosen), key=self.good.__getitem__)


# The plugin is found by its file: what is tested has a package `tests` of its own.
PYTEST = (sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "-p", Path(__file__).stem)


def environment(tree: Path, cache: Path) -> dict[str, str]:
    """Return the environment in which a copy of the tree is tested: its own package and cache, none of our settings."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("PRECAST_")}
    path = os.pathsep.join([str(tree / "pkg"), str(Path(__file__).parent)])
    return {**inherited, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache)}


def _digest(tree: Path, paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(f"{path.relative_to(tree)}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()[:24]


def measure(tree: Path, files: Sequence[str], tests: Sequence[str], marks: str, env: Mapping[str, str]) -> Path:
    """Run each test file under coverage unless that is done, and return the folder of what was measured."""
    folder = tree.parent / "covered"
    folder.mkdir(exist_ok=True)
    helpers = [path for path in (tree / "tests").rglob("*.py") if not path.name.startswith("test_")]
    helpers = [path for path in helpers if path.parent.name != Path(__file__).parent.name]
    common = _digest(tree, [*(tree / file for file in files), *helpers])
    kept = set()
    for number, test in enumerate(tests, 1):
        place = folder / f"{common}-{_digest(tree, [tree / test])}"
        kept.add(place.name)
        if (place / "results.json").exists():
            continue
        place.mkdir(exist_ok=True)
        print(f"coverage {number}/{len(tests)}: {test}", flush=True)
        config = place / "coveragerc"
        include = "\n    ".join(str(tree / file) for file in files)
        config.write_text(CONFIG.format(data=place / "data", current=CURRENT, include=include))
        more = {STARTS: str(config), RESULTS: str(place / "results.json")}
        command = [*PYTEST, "-m", marks, test]
        try:
            said = subprocess.run(
                command, cwd=tree, env={**env, **more}, capture_output=True, text=True,
                timeout=SECONDS_FOR_A_FILE, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"  left out: over {SECONDS_FOR_A_FILE} s")
            (place / "results.json").write_text("{}")
            continue
        if said.returncode not in (0, 5):
            print("  " + "\n  ".join(said.stdout.strip().splitlines()[-12:]))
    for old in folder.iterdir():
        if old.name not in kept:
            shutil.rmtree(old)
    return folder


def read(tree: Path, folder: Path) -> Covered:
    """Return what was measured of every test file."""
    from coverage import CoverageData

    covered = Covered()
    for results in folder.glob("*/results.json"):
        for test, (seconds, good) in json.loads(results.read_text()).items():
            if good:
                covered.good[test] = seconds
            else:
                covered.bad.add(test)
    for data_file in folder.glob("*/data*"):
        data = CoverageData(str(data_file))
        data.read()
        for measured in data.measured_files():
            lines = covered.lines.setdefault(str(Path(measured).relative_to(tree)), defaultdict(set))
            for line, contexts in data.contexts_by_lineno(measured).items():
                lines[line] |= {test for context in contexts for test in context.split("|") if test}
    return covered


def report(tree: Path, folder: Path, files: Sequence[str]) -> Iterable[tuple[str, int, int, list[int]]]:
    """Yield for each file its branches, those that no test takes, and the lines they start at."""
    from coverage import Coverage

    config = next(folder.glob("*/coveragerc"))
    whole = Coverage(data_file=str(folder.parent / "coverage"), config_file=str(config), context="")
    whole.combine([str(path) for path in folder.glob("*/data*")], keep=True)
    for file in files:
        stats = whole.branch_stats(str(tree / file))
        missed = {line: total - taken for line, (total, taken) in stats.items() if taken < total}
        yield file, sum(total for total, _ in stats.values()), sum(missed.values()), sorted(missed)
