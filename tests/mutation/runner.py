"""Runs the tests of one mutant after the other, in a copy of the tree."""

from __future__ import annotations

import ast
import contextlib
import enum
import fcntl
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation import covered
from tests.mutation.covered import Covered
from tests.mutation.equivalent import Equivalent
from tests.mutation.mutants import Mutant, mutants_at, places

FEW = 5  # a line that fewer tests run is tried with the tests of its file as well
ROUNDS = (3.0, 20.0)  # the seconds that the tests of a first and a second run took when they were measured
SECONDS_FOR_A_FILE_TO_START = 0.3


class Verdict(enum.Enum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    EQUIVALENT = "equivalent"
    SURVIVED = "survived"


@dataclass(frozen=True)
class Project:
    """What is changed and tested: patterns of paths in the checkout."""

    checkout: Path
    place: Path
    sources: Sequence[str]
    tests: Sequence[str]
    marks: str = ""
    telling: Sequence[tuple[str, str]] = ()  # a text in the changed line, and the test that is about it
    seconds: float = 60.0

    @property
    def tree(self) -> Path:
        """The copy. Its name says nothing, because some tests look for words in paths."""
        return self.place / "tree"

    @property
    def files(self) -> list[str]:
        """The files that are changed."""
        return self._matching(self.sources)

    @property
    def test_files(self) -> list[str]:
        """The files of tests, in the order of their patterns."""
        return self._matching(self.tests)

    def _matching(self, patterns: Sequence[str]) -> list[str]:
        every = (sorted(self.tree.glob(pattern)) for pattern in patterns)
        return list(dict.fromkeys(str(path.relative_to(self.tree)) for path in itertools.chain(*every)))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the original code."""
        return covered.environment(self.tree, self.place / "cache")

    def texts(self) -> dict[str, str]:
        """Return the sources that are changed."""
        return {file: (self.tree / file).read_text() for file in self.files}

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the copy for this process, or raise BlockingIOError: two mutants at once would say nothing."""
        self.place.mkdir(parents=True, exist_ok=True)
        with (self.place / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def copy(self) -> None:
        """Make the copy what the checkout is: all files that git knows or would add."""
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        said = subprocess.run(listed, cwd=self.checkout, capture_output=True, text=True, check=True)
        wanted = {name for name in said.stdout.split("\0") if name and (self.checkout / name).exists()}
        for path in list(self.tree.rglob("*")):
            name = str(path.relative_to(self.tree))
            if path.is_file() and name not in wanted and ".git" not in path.parts and path.suffix != ".pyc":
                path.unlink()
        for name in wanted:
            source, copied = self.checkout / name, self.tree / name
            if not copied.exists() or copied.read_bytes() != source.read_bytes():
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copied)


class Runner:
    """Gives each mutant its verdict."""

    def __init__(self, project: Project, tests: Covered, known: Iterable[Equivalent]) -> None:
        self.project, self.tests = project, tests
        self._equivalent = tuple(known)
        self._steady: set[str] = set()
        self._stamps = itertools.count(1)

    def run_all(self, drawn: Sequence[Mutant]) -> tuple[Counter[Verdict], list[Mutant]]:
        """Return how often there was each verdict, and the mutants that survived."""
        counts: Counter[Verdict] = Counter()
        survivors: list[Mutant] = []
        self._keep(survivors)
        for number, mutant in enumerate(drawn, 1):
            start = time.monotonic()
            verdict, by = self.verdict(mutant)
            took = time.monotonic() - start
            print(f"{number}/{len(drawn)} {verdict.value}, {took:.1f} s: {mutant.file}:{mutant.line} {by}", flush=True)
            counts[verdict] += 1
            if verdict is Verdict.SURVIVED:
                survivors.append(mutant)
                self._keep(survivors)  # at once, as a run may be cut short
        return counts, survivors

    def _keep(self, survivors: Iterable[Mutant]) -> None:
        kept = [[one.file, one.line, one.column, one.after] for one in survivors]
        (self.project.place / "survivors.json").write_text(json.dumps(kept))

    def last_survivors(self) -> list[Mutant]:
        """Return the survivors that the last run wrote down, as far as their lines are still there."""
        found = []
        for file, line, column, after in json.loads((self.project.place / "survivors.json").read_text()):
            source = self.project.texts()[file]
            ways = places(source).get((line, column), [])
            found += [one for one in mutants_at(file, source, (line, column), ways) if one.after == after]
        return found

    def verdict(self, mutant: Mutant) -> tuple[Verdict, str]:
        """Run the tests of one mutant, and say which of them noticed."""
        if any(entry.is_of(mutant) for entry in self._equivalent):
            return Verdict.EQUIVALENT, ""
        used = 0
        for tests in self.rounds(mutant):
            used += len(tests)
            while tests:
                with self._changed(mutant) as environment:
                    status, failed = self._run(tests, environment)
                if status is None:
                    return Verdict.TIMED_OUT, ""
                if status in (0, 5):
                    break
                if failed is None or self._is_steady(failed):
                    return Verdict.KILLED, f"by {failed or 'an import'}"
                tests = [test for test in tests if test != failed]
        return Verdict.SURVIVED, f"{used} tests"

    def rounds(self, mutant: Mutant) -> Iterator[list[str]]:
        """Yield the tests that may notice a mutant: a few that are quick, then more, up to a sum of seconds."""
        source = (self.project.tree / mutant.file).read_text()
        tests = self.tests.of_lines(mutant.file, range(statement_start(source, mutant.line), mutant.line + 1))
        if runs_at_import(source, mutant.line):  # a test that reads a constant runs no line of its file
            tests = self.tests.beside(mutant.file)
        if len(tests) < FEW or runs_at_import(source, mutant.line):
            tests += self.tests.of_file(mutant.file)
        telling = [test for text, test in self.project.telling if text in mutant.before]
        tests = list(dict.fromkeys([*telling, *tests]))
        for most in ROUNDS:
            chosen: dict[str, list[str]] = {}  # by file, so that each is imported once
            for test in tests:
                file = test.partition("::")[0]
                most -= self.tests.good.get(test, 0.0) + (0.0 if file in chosen else SECONDS_FOR_A_FILE_TO_START)
                if most < 0 and chosen:
                    break
                chosen.setdefault(file, []).append(test)
            together = list(itertools.chain(*chosen.values()))
            tests = [test for test in tests if test not in together]
            if together:
                yield together

    @contextlib.contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[dict[str, str]]:
        """Put the mutant into the copy, with a cache of its own: what it builds must not meet the next one."""
        path, cache = self.project.tree / mutant.file, self.project.place / "mutant-cache"
        original, stamp = path.read_text(), path.stat().st_mtime_ns
        shutil.rmtree(cache, ignore_errors=True)
        if (self.project.place / "cache").exists():
            shutil.copytree(self.project.place / "cache", cache, symlinks=True)
        try:
            path.write_text(mutant.source)
            # Python takes compiled code for current if the time in seconds and the size agree.
            later = stamp + next(self._stamps) * 1_000_000_000
            os.utime(path, ns=(later, later))
            yield {**covered.environment(self.project.tree, cache), "PYTHONDONTWRITEBYTECODE": "1"}
        finally:
            path.write_text(original)
            os.utime(path, ns=(stamp, stamp))

    def _is_steady(self, test: str) -> bool:
        """Return whether a test passes on its own without the mutant; one that does not says nothing about it."""
        if test not in self._steady and self._run([test], self.project.environment)[0] == 0:
            self._steady.add(test)
        return test in self._steady

    def _run(self, tests: Sequence[str], environment: dict[str, str]) -> tuple[int | None, str | None]:
        """Run tests up to the first failure; return pytest's status, or None after the time limit, and what failed."""
        results, temporary = self.project.place / "results.json", self.project.place / "tmp"
        results.unlink(missing_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        environment = {**environment, covered.RESULTS: str(results), "TMPDIR": str(temporary)}
        marks = ["-m", self.project.marks] if self.project.marks else []
        with (self.project.place / "output.txt").open("w") as output:
            child = subprocess.Popen(
                [*covered.PYTEST, "-x", *marks, *tests],
                cwd=self.project.tree, env=environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                status = child.wait(self.project.seconds)
            except subprocess.TimeoutExpired:
                return None, None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        outcomes = json.loads(results.read_text()) if results.exists() else {}
        return status, next((test for test, (_, good) in outcomes.items() if not good), None)


def runs_at_import(source: str, line: int) -> bool:
    """Return whether a line is outside of every function: then the tests that run it only happened to be the first."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return not any(node.body[0].lineno <= line <= (node.end_lineno or 0) for node in functions)


@functools.lru_cache(maxsize=4)
def _statements(source: str) -> list[tuple[int, int]]:
    every = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt))
    return sorted((node.lineno, node.end_lineno or node.lineno) for node in every)


def statement_start(source: str, line: int) -> int:
    """Return the first line of the innermost statement that a line is part of: the one that Python reports to run."""
    return max((first for first, last in _statements(source) if first <= line <= last), default=line)
